"""What every room uses: files, jobs over the cores, drawing, random inputs."""
