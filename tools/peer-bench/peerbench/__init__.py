"""Peerweave's host backend beside Open MPI and OpenSHMEM: cases, programs, machine, report."""
