"""Tasks in processes of their own: `@app.task(process=True)`.

    pool.py       in the worker: starts processes, gives each one call at a time, and kills them
    child.py      the program of such a process: imports the app once, and runs calls
    messages.py   what they send each other

A process is started as a new interpreter, never by fork: the worker has threads and sockets. It is
given the name of a task and a payload, never a function. It stays for the next call, so that the
modules of the app are imported once. A process that dies takes only its own call with it.

No process outlives its worker, and no child of one does, unless it is in a session of its own: the
socket is closed when the worker dies, and then a process kills its group. On Linux the kernel does
that, also if the process is stopped or does not come back from C code.
"""
