"""Compares Peerweave's host backend with Open MPI and OpenSHMEM: cases, programs, machine, report."""
