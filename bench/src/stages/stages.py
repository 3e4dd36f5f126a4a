"""Runs an Ignition's stages one after another, each as a process, and prints name, seconds and KiB of each.

Arguments: the program, the folder that holds config.ign and root/, and `time` or `memory`. The KiB are those of the
largest process of a stage; they are taken only where asked (0 otherwise), by a program which takes time itself.
"""

import os
import sys
import time

STAGES = ["fetch", "disks", "mount", "files", "umount"]


def main(program, folder, what):
    os.chdir(folder)
    flags = ["-platform", "file", "-root", f"{folder}/root", "-log-to-stdout"]
    for name in ["config-cache", "state-file", "neednet"]:
        flags += [f"-{name}", f"{folder}/{name}"]
    for stage in STAGES:
        said, memory = f"{folder}/{stage}.log", f"{folder}/{stage}.kib"
        arguments = [program, *flags, "-stage", stage]
        # A process that this one starts would count this one's memory as its own; one that `time` starts does not.
        if what == "memory":
            arguments = ["/usr/bin/time", "-q", "-f", "%M", "-o", memory, *arguments]
        log = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        actions = [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        begin = time.perf_counter()
        child = os.posix_spawn(arguments[0], arguments, os.environ, file_actions=actions)
        _, status = os.waitpid(child, 0)
        seconds = time.perf_counter() - begin
        os.close(log)
        if status != 0:
            code = os.waitstatus_to_exitcode(status)
            sys.exit(f"stage {stage} ended with {code}:\n{read(said)}")
        print(stage, f"{seconds:.6f}", read(memory).strip() if what == "memory" else 0)


def read(path):
    with open(path, errors="replace") as file:
        return file.read()


main(*sys.argv[1:])
