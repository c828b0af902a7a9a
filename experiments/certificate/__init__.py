"""Certificates of descent: is one ever false, and do they pay?"""
