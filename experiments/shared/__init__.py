"""What every room uses: files, jobs over the cores, processes, times, training, drawing, pages, random inputs."""
