"""Shows workdirs as one HTML page, or as figures for a paper.

  read_workdir -> pages of runs (`page.Run`) -> page.render -> report.html
  curves -> plots -> PNG and PDF

It only reads files, and nothing that a run trains with.
"""
