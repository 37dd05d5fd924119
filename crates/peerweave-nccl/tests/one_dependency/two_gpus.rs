// The program of the README: all-reduce on two GPUs.
use peerweave_nccl::prelude::*;

fn main() -> Result<()> {
    let ranks = Communicator::builder().on_devices([0, 1])?;
    let streams: Vec<_> = ranks.iter().map(|rank| rank.context().default_stream()).collect();
    let mut sums = streams.iter().map(|on| DeviceMemory::from_slice(on, &[1.0f32; 4])).collect::<Result<Vec<_>, _>>()?;
    let mut all = ranks.iter().zip(&streams).zip(&mut sums);
    ranks[0].nccl().group(|group| all.try_for_each(|((rank, on), sum)| group.all_reduce_in_place(rank, on, sum, ReduceOp::Sum)))?;
    ranks.iter().zip(&streams).try_for_each(|(rank, on)| rank.synchronize(on))?;
    sums[0].to_vec(&streams[0]).map(|sum| println!("{sum:?}")).map_err(NcclError::from) // [2.0, 2.0, 2.0, 2.0]
}
