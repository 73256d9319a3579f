"""Tasks that run in their own processes: `@app.task(process=True)`.

    pool.py       in the worker: starts processes, gives each one call at a time, and kills them
    child.py      the program of such a process: imports the app once and runs calls
    messages.py   what they send each other

A process is started as a new interpreter, never by fork, because the worker has threads and sockets.
It receives the name of a task and a payload, never a function. It is reused for the next call, so
the modules of the app are imported once. A process that dies takes only its own call with it.

No process outlives its worker, and neither do its children, unless they are in their own session: the
socket closes when the worker dies, and then the process kills its group. On Linux the kernel does
that, even if the process is stopped or does not return from C code.
"""
