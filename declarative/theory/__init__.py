"""The theory of the approximate gradients: when does the cheap one still descend?"""
