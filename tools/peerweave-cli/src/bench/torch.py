"""Times the all_reduce of PyTorch's symmetric memory for `peerweave bench --compare torch`.

`peerweave` starts one process for each PE, with RANK and WORLD_SIZE, and passes the cases as JSON
in the first argument. Each process prints a JSON object per line, as the PEs of `bench` do. The
faster of the one-shot and the two-shot form counts. Multicast is off. Every element of a result is
checked before the measurement.
"""

import json
import os
import statistics
import sys
import time


def say(record):
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def contenders(present, absent):
    say({"kind": "contenders", "present": present, "absent": absent, "arch": ""})


def main():
    config = json.loads(sys.argv[1])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

    def refuse(why):
        if rank == 0:
            contenders([], [["torch", why]])

    try:
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symm
    except ImportError as error:
        return refuse(f"PyTorch with symmetric memory is not installed: {error}")
    if torch.cuda.device_count() < size:
        return refuse(f"PyTorch finds {torch.cuda.device_count()} GPUs, expected one for each of {size} PEs")
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method="file://" + config["store"], rank=rank, world_size=size, device_id=device)
    if rank == 0:
        contenders([["torch", f"PyTorch {torch.__version__}, symmetric memory"]], [])
    group = dist.group.WORLD.group_name
    stream = torch.cuda.Stream()

    def barrier():
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()

    def slowest(value):
        worst = torch.tensor([value], dtype=torch.float64, device=device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        return float(worst.item())

    def measured(call, write, result):
        """Returns (calls per batch, microseconds of each batch, wrong elements)."""
        with torch.cuda.stream(stream):
            write()
            barrier()
            call()
            torch.cuda.synchronize()
            wrong = result()
            for _ in range(max(config["warmup"], 1)):
                call()
            barrier()
            per_launch = config["graph"] or 1
            launch = call
            if config["graph"]:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    for _ in range(config["graph"]):
                        call()
                launch = graph.replay

            def batch(launches):
                barrier()
                start = time.perf_counter()
                for _ in range(launches):
                    launch()
                torch.cuda.synchronize()
                return time.perf_counter() - start

            batch(3)
            if config["iters"]:
                launches = -(-config["iters"] // per_launch)
            else:
                launches = min(max(int(config["batch_ms"] * 3e-3 / slowest(batch(3))), 3), 100000)
            times = [batch(launches) * 1e6 / (launches * per_launch) for _ in range(config["batches"])]
        return launches * per_launch, times, wrong

    types = {"half": torch.float16, "bfloat16": torch.bfloat16, "float": torch.float32}
    for case in config["cases"]:
        count, dtype = case["count"], types[case["type"]]
        shared = symm.empty(count, dtype=dtype, device=device)
        symm.rendezvous(shared, group)
        index = torch.arange(count, device=device) % 7
        # The inputs are small integers, so that sums are exact in every type.
        given = (index + rank).to(dtype)
        expected = (index * size + size * (size - 1) // 2).to(dtype)
        kept = {}

        def one_shot():
            kept["result"] = torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", group)

        def two_shot():
            kept["result"] = torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", group)

        def write():
            shared.copy_(given)

        def result():
            return int((kept["result"] != expected).sum().item())

        best = None
        # One-shot reads the buffers of all ranks on each rank.
        for form in [one_shot, two_shot] if count * shared.element_size() <= 4 << 20 else [two_shot]:
            try:
                found = measured(form, write, result)
            except RuntimeError as error:
                # This form does not support the size. The error is the same on all ranks.
                sys.stderr.write(f"torch, {count} elements, {form.__name__}: {error}\n")
                continue
            median = slowest(statistics.median(found[1]))
            if best is None or median < best[0]:
                best = (median, found)
        iters, times, wrong = best[1] if best else (0, [], None)
        wrong = wrong if config["check"] else None
        say({"kind": "compared", "pe": rank, "row": case["row"], "contender": "torch", "iters": iters, "batch_us": times, "wrong": wrong})
    dist.destroy_process_group()


main()
