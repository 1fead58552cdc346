"""Shows workdirs as one HTML page.

It only reads files of workdirs, and imports nothing that a run trains with.
Start reading in `write`: it reads workdirs as `page.Run`, which `page` renders;
`curves` lays out the charts.
"""
