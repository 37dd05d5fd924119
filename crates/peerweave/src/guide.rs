//! Pages on topics that concern several items: which operation to choose, which calls several
//! threads may make, what to do after a failure, and the equivalents of operations of other
//! libraries.
//!
//! | page | for |
//! |---|---|
//! | [`choosing`] | a new program: which memory, which operation, which form |
//! | [`threads`] | a PE with several threads |
//! | [`after_a_failure`] | a program that continues when a PE has died |
//! | [`from_mpi`] | users of MPI |
//! | [`from_openshmem`] | users of OpenSHMEM, and of NVSHMEM's host functions |
//! | [`from_nccl`] | users of NCCL |
//! | [`from_torch`] | users of `torch.distributed` |

#[cfg(doc)]
use crate::{
    Buffer, Error, OnDevice, Parts, ReduceFn, ReduceOp, Reduction, Stream, Symmetric, Team, Ticket, World, WorldBuilder,
};
#[cfg(doc)]
use crate::{Context, Lock};

/// How to choose the memory, the operation and the form of a call.
///
/// # Memory
/// | data | memory |
/// |---|---|
/// | is communicated often, or accessed by other PEs | [`Symmetric`], by [`World::alloc`](peerweave_core::World::alloc): operations need no intermediate copy |
/// | is communicated once, by a blocking call | a slice, array, vector or single element (`&mut x`) of your own |
/// | is symmetric, but the program knows only its address or offset | [`World::symmetric_of`](peerweave_core::World::symmetric_of), [`World::symmetric_at`](peerweave_core::World::symmetric_at) |
/// | belongs to this PE and is used by stream-ordered calls | [`Buffer`], because an enqueued operation cannot borrow a slice |
/// | lies on a GPU and was allocated by another library | [`OnDevice`] |
///
/// # Elements
/// | data | element |
/// |---|---|
/// | numbers | integers of 8 to 128 bits, floats of 8 to 64 bits |
/// | truth values | [`Bool`](crate::Bool), because some bytes are not a valid `bool` |
/// | complex numbers | `num_complex::Complex`, with the feature `num-complex`; the only built-in reductions are [`ReduceOp::Sum`] and [`ReduceOp::Avg`]; for a product, use a [`ReduceFn`] |
/// | words that several PEs change | integers of 32 and 64 bits, which have all atomic operations; `f32` and `f64`, which have only fetch, set and swap; smaller types have no atomic operations |
/// | words that a PE waits for | integers of 16, 32 and 64 bits |
/// | several numbers that belong together | an array `[T; N]`, or a struct with [`#[derive(Element)]`](trait@crate::Element#structs) |
///
/// # Operation
/// | what the program needs | operation |
/// |---|---|
/// | every rank contributes, and every rank needs the whole result | [`Team::all_reduce`], [`Team::all_gather`], [`Team::all_gather_v`] for unequal parts |
/// | the sum of all ranks is added to a residual and normalised, as between layers of a transformer | [`Team::all_reduce_rms_norm`], one kernel on GPUs |
/// | every rank contributes, and every rank needs only its own part of the result | [`Team::reduce_scatter`], [`Team::all_to_all`], [`Team::all_to_all_v`] for unequal parts |
/// | a rank needs the reduction of the ranks before it, such as the offset of its elements in a list of all elements | [`Team::scan`], [`Team::exclusive_scan`] |
/// | your own function combines the elements | [`Team::all_reduce_with`], [`Team::reduce_with`], [`Team::scan_with`], [`Team::exclusive_scan_with`]; on GPUs, the function [runs on the host](ReduceFn#on-gpus) |
/// | only one rank has the data, or only one rank needs the data | [`Team::broadcast`], [`Team::scatter`], [`Team::reduce`], [`Team::gather`]; [`Team::scatter_v`], [`Team::gather_v`] for unequal parts |
/// | two ranks exchange data, and both ranks know when | [`Team::send`] and [`Team::recv`]; several messages in a [`Team::group`], so that no message waits for another |
/// | only the sender knows when it sends, and the receiver waits for the data | [`Team::put_signal`] and [`Team::wait_until`] |
/// | only the receiver knows which data it needs | [`Team::get`] |
/// | many small elements to many places | [`Team::p`], [`Team::put_nbi`], then one [`quiet`](peerweave_core::World::quiet) or barrier |
/// | a counter or a lock-free structure that all PEs share | [`Team::atomic_fetch_add`], [`Team::atomic_compare_swap`] |
/// | a change of several elements that other PEs see completely or not at all | [`Lock`], by [`World::alloc_lock`](peerweave_core::World::alloc_lock) |
/// | several independent sets of puts and gets, each completed separately | a [`Context`] for each |
/// | no PE may continue before all PEs have arrived | [`Team::barrier`], which also completes earlier puts; [`Team::sync`] only waits |
///
/// A collective completes on each rank separately: after an `all_reduce` returns on this PE,
/// another PE may still be writing the result on that PE. Call a barrier before you put into memory
/// that a collective of another PE uses.
///
/// # Form
/// The form with the short name takes a [`Stream`] and returns a [`Ticket`] immediately. Choose
/// this form if the program has other work to do during the operation, or if it enqueues several
/// operations in sequence. The form with `_blocking` takes less time for a single small operation.
///
/// There are no persistent operations, such as those of `MPI_Allreduce_init`, which are planned
/// once and started many times. On the host backend, preparing a call takes about 5 ns of the 93 ns
/// that a small collective takes, so planning saves little. To save the cost of many calls on GPUs,
/// capture the calls into a graph.
///
/// A halo exchange with two neighbours, by puts with signals:
/// ```
/// use peerweave::{Compare, Rank, World};
///
/// # fn main() -> peerweave::Result<()> {
/// let world = World::from_env()?;
/// let (team, n) = (world.team(), world.n_pes() as u32);
/// let me = team.my_rank().get();
/// let (left, right) = (Rank::new((me + n - 1) % n), Rank::new((me + 1) % n));
/// let row = world.alloc_zeroed::<f64>(10)?; // 0 and 9 are copies of the neighbours' elements
/// let arrived = world.alloc_zeroed::<u64>(2)?;
/// row.slice(1..9)?.fill(f64::from(me))?;
///
/// let (from_left, from_right) = (arrived.signal(0)?, arrived.signal(1)?);
/// team.put_signal_blocking(&row.slice(1..2)?, &row.slice(9..10)?, from_right.set(1), left)?;
/// team.put_signal_blocking(&row.slice(8..9)?, &row.slice(0..1)?, from_left.set(1), right)?;
/// team.wait_until_blocking(&from_left, Compare::Ge, 1)?;
/// team.wait_until_blocking(&from_right, Compare::Ge, 1)?;
/// assert_eq!((row.load(0)?, row.load(9)?), (f64::from(left.get()), f64::from(right.get())));
/// row.release()?;
/// arrived.release()?;
/// assert!(world.finalize()?.is_clean());
/// # Ok(())
/// # }
/// ```
pub mod choosing {}

/// The calls that several threads of a PE may make, and the order that these calls need.
///
/// A program can send every handle to other threads, and several threads can use a handle at the
/// same time. The program must order the following calls itself:
///
/// | calls | rule |
/// |---|---|
/// | collectives of one team, [`alloc`](peerweave_core::World::alloc), [`Symmetric::release`], splits, [`Team::destroy`] | all PEs must issue these calls in the same order: issue the calls of a team from one thread, or give each thread its own team |
/// | one-sided operations, atomics, signals, waits | any thread at any time |
/// | [`Team::send`] and [`Team::recv`] between two ranks | match in the order in which they are issued: issue the calls for each direction from one thread |
/// | operations of one stream | run in the order in which they have been enqueued; use one stream for each thread, so that threads do not wait for each other |
/// | [`fence`](peerweave_core::World::fence), [`quiet`](peerweave_core::World::quiet) | apply to the operations of the stream, or, in the blocking form, to the operations of the calling thread |
/// | operations of a [`Context`], and its fence and quiet | any thread at any time; use one context for each thread, so that a quiet of one thread does not wait for another thread's operations |
/// | [`Lock::lock`] | any thread at any time; a thread that holds a lock cannot lock it again |
/// | [`Ticket::wait`] | any thread, more than once |
/// | [`World::finalize`](peerweave_core::World::finalize) | once, by one thread, after the last collective call of the other threads; later calls of other threads return an error. The method takes `&self`, so threads share the world without a lock |
///
/// Accesses to this PE's symmetric memory ([`Symmetric::load`], [`Symmetric::store`],
/// [`Symmetric::copy_from`], ...) are safe while other PEs access it. These accesses do not order
/// any other accesses: use a signal, an atomic operation or a barrier to know that data has
/// arrived.
pub mod threads {}

/// What to do after a failure.
///
/// When a PE dies, calls of other PEs that need the dead PE fail within milliseconds, and
/// [`Error::blamed`] names the dead PE. The program then has three choices:
///
/// | choice | call | when |
/// |---|---|---|
/// | end | return the error | the launcher, or a scheduler, starts the job again from its last checkpoint |
/// | end immediately, on all PEs | [`World::abort`](peerweave_core::World::abort) | PEs may compute for a long time, and their results are lost anyway |
/// | continue | [`World::shrink`] | the work can be divided anew among the remaining PEs |
///
/// To continue, all remaining PEs call [`World::shrink`] on the world that has failed. These PEs
/// agree on the set of remaining PEs, and get a new world. In the new world, PEs are numbered from
/// 0 again, in the old order, and [`World::former_pes`](peerweave_core::World::former_pes) returns
/// the old numbers. This works whichever PE has died, including PE 0.
///
/// If another PE dies during the call, there are two cases. Either the new world does not contain
/// that PE, or the first operation of the new world fails and names that PE. In the second case,
/// shrink the new world.
///
/// In the [`team`](peerweave_core::World::team) of the new world, the ranks are the new numbers of
/// the PEs. Teams of the old world are not carried over: split the new team again.
///
/// The new world has its own memory, teams and streams. The old handles serve only to carry data
/// over: [`Symmetric::to_vec`] and the other methods that access a PE's own memory still work until
/// the last old handle is dropped. Memory that an operation was writing when it failed has
/// unspecified values. Carry over data that no failed operation wrote, such as the parameters of
/// the last complete step. Alternatively, agree on a step that all PEs have completed. Data that
/// only the dead PE had is lost: keep a copy of important data on another PE.
///
/// ```
/// use peerweave::{ReduceOp, Result, World, on_threads};
///
/// /// Computes the mean of a value of each PE, five times. PE 2 is lost after the second time.
/// fn program(mut world: World) -> Result<Vec<f64>> {
///     let (first_number, mut means) = (world.my_pe().get(), Vec::new());
///     let mut kept = world.alloc::<f64>(1)?; // the data that a PE carries over
///     kept.fill(f64::from(first_number))?;
///     while means.len() < 5 {
///         if first_number == 2 && means.len() == 2 {
///             return Ok(means); // leaves; the death of a process is detected likewise
///         }
///         let mut sum = [kept.load(0)?];
///         match world.team().all_reduce_in_place_blocking(&mut sum, ReduceOp::Sum) {
///             Ok(()) => means.push(sum[0] / world.n_pes() as f64),
///             Err(_) => {
///                 let smaller = world.shrink()?;
///                 let carried = smaller.alloc::<f64>(1)?;
///                 carried.copy_from(&kept.to_vec()?)?;
///                 (world, kept) = (smaller, carried); // drops the old world and frees its memory
///             }
///         }
///     }
///     kept.release()?;
///     assert!(world.finalize()?.is_clean());
///     Ok(means)
/// }
///
/// let means = on_threads(4, program)?;
/// assert!(matches!(&means[0], Ok(means) if means[..2] == [1.5, 1.5] && means[4] == 4.0 / 3.0));
/// # Ok::<(), peerweave::Error>(())
/// ```
///
/// PEs must agree on the step from which they continue. After a failed collective, some PEs may
/// have the result, and other PEs the error. In the example above, `means` could have three
/// elements on one PE and two on another PE. If such a difference matters, let the PEs agree after
/// each shrink: compute the minimum of the last step that each PE has completed, by an all-reduce
/// with [`ReduceOp::Min`].
///
/// A launcher must not end the other PEs when one PE has died.
/// `peerweave run --on-failure=continue` reports the death and lets the other PEs continue; its
/// exit status is 0 if at least one PE succeeds. `torchrun`, `mpirun` and `mpiexec` end the other
/// PEs unless configured otherwise. `srun` has `--no-kill` and `--kill-on-bad-exit=0`.
///
/// If the launcher itself is killed (`SIGKILL`), the PEs of `peerweave run` end too. PEs that Open
/// MPI's `mpirun` has started continue, because they need no launcher after the start. End these
/// PEs manually, or end the job in the scheduler.
pub mod after_a_failure {}

/// MPI's functions, and the equivalents of these functions in this crate.
///
/// | MPI | here |
/// |---|---|
/// | `MPI_Init`, `MPI_Finalize` | [`World::from_env`], [`World::finalize`](peerweave_core::World::finalize) |
/// | `MPI_Abort` | [`World::abort`](peerweave_core::World::abort): all processes exit with the given code |
/// | `MPI_Comm_rank`, `MPI_Comm_size` | [`Team::my_rank`], [`Team::size`] |
/// | `MPI_COMM_WORLD` | [`World::team`](peerweave_core::World::team) |
/// | `MPI_Comm_split` | [`Team::split`]; `MPI_UNDEFINED` is `None` |
/// | `MPI_Comm_create_group` | [`World::team_of`](peerweave_core::World::team_of): only the members call |
/// | `MPI_Comm_split_type` with `MPI_COMM_TYPE_SHARED` | [`World::local_team`](peerweave_core::World::local_team) |
/// | `MPI_Group_translate_ranks` | [`Team::translate`] |
/// | `MPI_Barrier` | [`Team::sync`], or [`Team::barrier`], which also completes puts |
/// | `MPI_Bcast` | [`Team::broadcast_in_place`] |
/// | `MPI_Reduce`, `MPI_Allreduce` | [`Team::reduce`], [`Team::all_reduce`] |
/// | `MPI_Scan`, `MPI_Exscan` | [`Team::scan`], [`Team::exclusive_scan`] |
/// | `MPI_SUM`, `MPI_PROD`, `MPI_MIN`, `MPI_MAX` | [`ReduceOp::Sum`], [`ReduceOp::Prod`], [`ReduceOp::Min`], [`ReduceOp::Max`] |
/// | `MPI_BAND`, `MPI_BOR`, `MPI_BXOR` | [`ReduceOp::And`], [`ReduceOp::Or`], [`ReduceOp::Xor`], of integers |
/// | `MPI_LAND`, `MPI_LOR`, `MPI_LXOR` | the same reductions, of [`Bool`](crate::Bool) |
/// | `MPI_MINLOC`, `MPI_MAXLOC` | a [`ReduceFn`] of arrays or structs, such as `[value, rank]` |
/// | `MPI_REPLACE`, `MPI_NO_OP` of one-sided operations | [`Team::atomic_swap`], [`Team::atomic_fetch`] |
/// | `MPI_Op_create` | [`ReduceFn`], for [`Team::all_reduce_with`], [`Team::reduce_with`], [`Team::scan_with`], [`Team::exclusive_scan_with`]; on GPUs, the function [runs on the host](ReduceFn#on-gpus) |
/// | `MPI_Reduce_scatter_block` | [`Team::reduce_scatter`] |
/// | `MPI_Gather`, `MPI_Allgather`, `MPI_Scatter` | [`Team::gather`], [`Team::all_gather`], [`Team::scatter`] |
/// | `MPI_Gatherv`, `MPI_Allgatherv`, `MPI_Scatterv` | [`Team::gather_v`], [`Team::all_gather_v`], [`Team::scatter_v`]: one [`Parts`] stands for `recvcounts` and `displs` |
/// | `MPI_Alltoall`, `MPI_Alltoallv` | [`Team::all_to_all`], [`Team::all_to_all_v`] |
/// | an `MPI_Alltoall` of counts before an `MPI_Alltoallv` | [`Team::exchange_counts`] |
/// | `MPI_IN_PLACE` | the forms whose names end with `_in_place` |
/// | `MPI_Send`, `MPI_Recv` | [`Team::send_blocking`], [`Team::recv_blocking`]; there are no tags: messages between two ranks match in order |
/// | `MPI_Sendrecv` | a send and a receive in one [`Team::group_blocking`] |
/// | `MPI_Isend`, `MPI_Iallreduce`, ... and `MPI_Wait`, `MPI_Test` | the stream-ordered form, [`Ticket::wait`], [`Ticket::is_complete`] |
/// | `MPI_Win_allocate`, `MPI_Put`, `MPI_Get`, `MPI_Win_flush_all` | [`World::alloc`](peerweave_core::World::alloc), [`Team::put_nbi`], [`Team::get_nbi`], [`World::quiet`](peerweave_core::World::quiet) |
/// | `MPI_Fetch_and_op`, `MPI_Compare_and_swap` | [`Team::atomic_fetch_add`], [`Team::atomic_compare_swap`] |
/// | error codes | [`Error`], which names the PE at fault; every wait has a deadline |
/// | `MPIX_Comm_shrink`, `MPIX_Comm_agree` (ULFM) | [`World::shrink`]: the remaining PEs agree on a smaller world |
/// | `MPIX_Comm_revoke` (ULFM) | not needed: a wait for a PE that has called [`World::shrink`] ends with an error |
///
/// There are no tags, no wildcards for the source, no derived datatypes and no intercommunicators.
pub mod from_mpi {}

/// OpenSHMEM's functions, and the equivalents of these functions in this crate. NVSHMEM's host
/// functions have the same names as OpenSHMEM's functions, with the prefix `nvshmem_`.
///
/// | OpenSHMEM | here |
/// |---|---|
/// | `shmem_init`, `shmem_finalize` | [`World::from_env`], [`World::finalize`](peerweave_core::World::finalize) |
/// | `shmem_global_exit` | [`World::abort`](peerweave_core::World::abort): all processes exit with the given code |
/// | `shmem_my_pe`, `shmem_n_pes` | [`World::my_pe`](peerweave_core::World::my_pe), [`World::n_pes`](peerweave_core::World::n_pes) |
/// | `shmem_malloc`, `shmem_calloc`, `shmem_align`, `shmem_free` | [`alloc`](peerweave_core::World::alloc), [`alloc_zeroed`](peerweave_core::World::alloc_zeroed), [`alloc_aligned`](peerweave_core::World::alloc_aligned), [`Symmetric::release`] |
/// | `shmem_put`, `shmem_get` | [`Team::put_blocking`], [`Team::get_blocking`]: the source is the first argument |
/// | `shmem_put_nbi`, `shmem_get_nbi` | [`Team::put_nbi_blocking`], [`Team::get_nbi_blocking`] |
/// | `shmem_iput`, `shmem_iget` | [`Team::put_strided`], [`Team::get_strided`] |
/// | `shmem_p`, `shmem_g` | [`Team::p_blocking`], [`Team::g_blocking`] |
/// | `shmem_put_signal` | [`Team::put_signal_blocking`] with `word.set(value)` or `word.add(value)` |
/// | `shmem_signal_fetch`, `shmem_signal_wait_until` | [`Team::signal_fetch`], [`Team::wait_until_blocking`] |
/// | `shmem_wait_until`, `shmem_test` | [`Team::wait_until_blocking`], [`Team::test`], of `(&symmetric, index)` |
/// | `shmem_wait_until_all`, `_any`, `_some`, `shmem_test_all`, ... | [`Team::wait_until_all`], [`Team::wait_until_any`], [`Team::wait_until_some`], [`Team::test_all`], ...: the program need not exclude an index that has been returned |
/// | `shmem_wait_until_all_vector`, ... | [`Team::wait_until_all_vector`], [`Team::test_any_vector`], ... |
/// | `shmem_fence`, `shmem_quiet` | [`World::fence_blocking`](peerweave_core::World::fence_blocking), [`World::quiet_blocking`](peerweave_core::World::quiet_blocking) |
/// | `shmem_team_create_ctx`, `shmem_ctx_create` | [`Team::context`]; the options `SHMEM_CTX_PRIVATE`, `SERIALIZED` and `NOSTORE` would change nothing |
/// | `shmem_ctx_put`, `shmem_ctx_get_nbi`, `shmem_ctx_atomic_*`, ... | [`Context::put`], [`Context::get`], [`Context::atomic_add`], ...: like the `nbi` forms, these methods return once the operation has been issued |
/// | `shmem_ctx_fence`, `shmem_ctx_quiet`, `shmem_ctx_get_team` | [`Context::fence`], [`Context::quiet`], [`Context::team`] |
/// | `shmem_ctx_destroy` | [`Context::quiet`], then drop the context; the drop does not wait |
/// | `SHMEM_CTX_DEFAULT` | the methods of [`Team`] |
/// | `shmem_set_lock`, `shmem_test_lock`, `shmem_clear_lock` | [`Lock::lock`], [`Lock::try_lock`], and dropping the guard; [`World::alloc_lock`](peerweave_core::World::alloc_lock) creates a lock |
/// | `shmem_barrier_all`, `shmem_team_sync` | [`Team::barrier_blocking`], [`Team::sync_blocking`] |
/// | `shmem_broadcast`, `shmem_fcollect`, `shmem_alltoall` | [`Team::broadcast`], [`Team::all_gather`], [`Team::all_to_all`] |
/// | `shmem_alltoalls` | [`Team::all_to_all_strided`] |
/// | `shmem_collect` | [`Team::all_gather_v`] with [`Parts`] that contain the length of each rank's contribution; [`Team::exchange_parts`] collects these lengths from all ranks |
/// | `shmem_sum_reduce`, `shmem_max_reduce`, ... | [`Team::all_reduce`] with a [`ReduceOp`] |
/// | `shmem_atomic_*` | `Team::atomic_*`, such as [`Team::atomic_fetch_add`] |
/// | `shmem_team_split_strided`, `shmem_team_split_2d` | [`Team::split_strided`], [`Team::split_2d`](crate::Team::split_2d) |
/// | `shmem_team_translate_pe` | [`Team::translate`] |
///
/// One-sided operations take ranks of the team on which they are called.
/// [`World::team`](peerweave_core::World::team) contains all PEs, and each PE's rank in it is equal
/// to the PE's number.
pub mod from_openshmem {}

/// NCCL's functions, and the equivalents of these functions in the portable API. To call NCCL
/// itself, use `peerweave-nccl`.
///
/// | NCCL | here |
/// |---|---|
/// | `ncclGetUniqueId`, `ncclCommInitRank` | [`World::from_env`], under any launcher |
/// | `ncclCommUserRank`, `ncclCommCount` | [`Team::my_rank`], [`Team::size`] |
/// | `ncclCommSplit` | [`Team::split`]; `NCCL_SPLIT_NOCOLOR` is `None` |
/// | `ncclAllReduce`, `ncclReduce`, `ncclBroadcast`, `ncclAllGather`, `ncclReduceScatter`, `ncclAlltoAll`, `ncclGather`, `ncclScatter` | the methods of [`Team`] with these names |
/// | `sendbuff == recvbuff` | the forms whose names end with `_in_place` |
/// | `ncclSend`, `ncclRecv` | [`Team::send`], [`Team::recv`] |
/// | `ncclGroupStart`, `ncclGroupEnd` | [`Team::group`], with a closure that makes the calls of the group |
/// | `cudaStream_t` | [`Stream`], by [`World::stream`](peerweave_core::World::stream) |
/// | `cudaStreamSynchronize` | [`Stream::synchronize`], or [`Ticket::wait`] for one operation |
/// | `ncclMemAlloc`, `ncclCommWindowRegister` | [`Symmetric`] memory, which is allocated on all PEs and registered with all PEs |
/// | `ncclRedOpCreatePreMulSum` | [`Reduction::pre_mul_sum`] |
/// | `ncclCommGetAsyncError`, `ncclCommAbort` | the errors that tickets and calls return; calls on a team that has failed return [`Error::Poisoned`] |
/// | `ncclCommShrink` | [`World::shrink`], which determines the remaining PEs itself |
///
/// Calls take no counts: the length of a buffer, in elements, is the count. If a length is wrong,
/// the call returns an error before it enqueues anything.
pub mod from_nccl {}

/// Functions of `torch.distributed`, and the equivalents of these functions in this crate.
///
/// | `torch.distributed` | here |
/// |---|---|
/// | `torchrun --nproc-per-node 4 train.py` | `peerweave run -n 4 -- train`, or `torchrun --no-python` |
/// | `init_process_group`, `destroy_process_group` | [`World::from_env`], [`World::finalize`](peerweave_core::World::finalize) |
/// | `get_rank`, `get_world_size` | [`World::my_pe`](peerweave_core::World::my_pe), [`World::n_pes`](peerweave_core::World::n_pes) |
/// | `new_group` | [`Team::split`] |
/// | `all_reduce(tensor, ReduceOp.SUM)` | [`Team::all_reduce_in_place`] with [`ReduceOp::Sum`] |
/// | `ReduceOp.AVG`, `PREMUL_SUM`, `BAND` | [`ReduceOp::Avg`], [`Reduction::pre_mul_sum`], [`ReduceOp::And`] |
/// | `broadcast`, `reduce`, `gather`, `scatter` | the methods of [`Team`] with these names |
/// | `all_gather_into_tensor`, `reduce_scatter_tensor`, `all_to_all_single` | [`Team::all_gather`], [`Team::reduce_scatter`], [`Team::all_to_all`] |
/// | `all_gather` of tensors of different sizes, `all_to_all_single` with split sizes | [`Team::all_gather_v`], [`Team::all_to_all_v`] |
/// | `send`, `recv`, `batch_isend_irecv` | [`Team::send_blocking`], [`Team::recv_blocking`], [`Team::group`] |
/// | `async_op=True`, `work.wait()` | the stream-ordered form, [`Ticket::wait`] |
/// | `barrier` | [`Team::barrier_blocking`] |
/// | `timeout=` | `PEERWEAVE_DEADLINE`, or [`WorldBuilder`]; the deadline applies to every operation |
/// | `_symmetric_memory.empty`, `rendezvous` | [`World::alloc`](peerweave_core::World::alloc) |
pub mod from_torch {}
