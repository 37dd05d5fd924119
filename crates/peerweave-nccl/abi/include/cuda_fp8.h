// Stands in for the toolkit's file, of which NCCL's host headers use nothing.
