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
    Buffer, Caps, Error, Event, LaunchShape, OnDevice, Parts, ReduceFn, ReduceOp, Reduction, Stream, Symmetric, Team, Ticket,
    VectorCounts, World, WorldBuilder,
};
#[cfg(doc)]
use crate::{Context, Lock, LockGuard};

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
/// # Teams
/// | which PEs take part | team |
/// |---|---|
/// | all PEs of the job | [`World::team`](peerweave_core::World::team) |
/// | the PEs of this machine | [`World::local_team`](peerweave_core::World::local_team) |
/// | PEs that compute the same color, such as the stages of a pipeline | [`Team::split`] |
/// | the rows and the columns of a grid of PEs | [`Team::split_2d`](crate::Team::split_2d) |
/// | PEs at equal distances | [`Team::split_strided`] |
/// | a list of PEs, where the other PEs must not take part in the call | [`World::team_of`](peerweave_core::World::team_of) |
///
/// All ranks of the parent team call a split. A PE can belong to at most
/// [`Caps::max_teams`] teams: end teams with [`Team::destroy`].
///
/// # Collectives
/// | what the program needs | operation |
/// |---|---|
/// | every rank contributes, and every rank needs the whole result | [`Team::all_reduce`], [`Team::all_gather`], [`Team::all_gather_v`] for unequal parts |
/// | the sum of all ranks is added to a residual and normalised, as between layers of a transformer | [`Team::all_reduce_rms_norm`], one kernel on GPUs; [`Team::all_reduce_rms_norm_quantized`] for a result of 8 bits |
/// | every rank contributes, and every rank needs only its own part of the result | [`Team::reduce_scatter`], [`Team::all_to_all`], [`Team::all_to_all_v`] for unequal parts, [`Team::all_to_all_strided`] for elements that are not contiguous |
/// | a rank knows only the lengths of the parts that it sends | [`Team::exchange_counts`] before an all-to-all-v, [`Team::exchange_parts`] before an all-gather-v |
/// | a rank needs the reduction of the ranks before it, such as the offset of its elements in a list of all elements | [`Team::scan`], [`Team::exclusive_scan`] |
/// | your own function combines the elements | [`Team::all_reduce_with`], [`Team::reduce_with`], [`Team::scan_with`], [`Team::exclusive_scan_with`]; on GPUs, the function [runs on the host](ReduceFn#on-gpus) |
/// | only one rank has the data, or only one rank needs the data | [`Team::broadcast`], [`Team::scatter`], [`Team::reduce`], [`Team::gather`]; [`Team::scatter_v`], [`Team::gather_v`] for unequal parts |
/// | no PE may continue before all PEs have arrived | [`Team::barrier`], which also completes earlier puts; [`Team::sync`] only waits |
///
/// A collective completes on each rank separately: after an `all_reduce` returns on this PE,
/// another PE may still be writing the result on that PE. Call a barrier before you put into memory
/// that a collective of another PE uses.
///
/// # Messages and one-sided operations
/// | what the program needs | operation |
/// |---|---|
/// | two ranks exchange data, and both ranks know when | [`Team::send`] and [`Team::recv`]; several messages in a [`Team::group`], so that no message waits for another |
/// | only the sender knows when it sends, and the receiver waits for the data | [`Team::put_signal`] and [`Team::wait_until`] |
/// | data that the target reads after the next barrier | [`Team::put`] |
/// | only the receiver knows which data it needs | [`Team::get`] |
/// | elements at equal distances, such as the column of a matrix | [`Team::put_strided`], [`Team::get_strided`] |
/// | many small elements to many places | [`Team::p`], [`Team::put_nbi`], then one [`quiet`](peerweave_core::World::quiet) or barrier |
/// | one element of another PE | [`Team::g`] |
/// | a message without data, or one message after several puts | [`Team::signal`], after a [`fence`](peerweave_core::World::fence) |
/// | a counter or a lock-free structure that all PEs share | [`Team::atomic_fetch_add`], [`Team::atomic_compare_swap`] |
/// | flags in the bits of a word | [`Team::atomic_or`], [`Team::atomic_and`], [`Team::atomic_xor`], and their `fetch` forms |
/// | a word that is read, set or replaced atomically | [`Team::atomic_fetch`], [`Team::atomic_set`], [`Team::atomic_swap`] |
/// | a change of several elements that other PEs see completely or not at all | [`Lock`], by [`World::alloc_lock`](peerweave_core::World::alloc_lock) |
/// | loads and stores in the memory of another PE of this machine | [`Team::peer_ptr`]; for kernels, [`Team::peer_device_address`] |
///
/// To do other work while another PE holds a lock, use [`Lock::try_lock`]. To continue after
/// the death of a holder, use [`Lock::take_over`].
///
/// # Waits
/// A PE waits for words of its own memory that other PEs change.
///
/// | when the wait ends | wait | test that does not wait |
/// |---|---|---|
/// | a word satisfies a comparison | [`Team::wait_until`] | [`Team::test`] |
/// | all words of a buffer satisfy a comparison | [`Team::wait_until_all`] | [`Team::test_all`] |
/// | at least one word satisfies a comparison, and the program handles one word at a time | [`Team::wait_until_any`] | [`Team::test_any`] |
/// | at least one word satisfies a comparison, and the program handles all such words | [`Team::wait_until_some`] | [`Team::test_some`] |
/// | as in the three rows above, but each word is compared with a separate value | [`Team::wait_until_all_vector`], [`Team::wait_until_any_vector`], [`Team::wait_until_some_vector`] | [`Team::test_all_vector`], [`Team::test_any_vector`], [`Team::test_some_vector`] |
///
/// [`Team::signal_fetch`] returns the value of a signal word, but does not order accesses to data.
///
/// # Order and completion of one-sided operations
/// | what the program needs | operation |
/// |---|---|
/// | a target sees earlier puts before later ones | [`World::fence`](peerweave_core::World::fence) |
/// | all operations of this PE are complete at their targets | [`World::quiet`](peerweave_core::World::quiet) |
/// | all operations are complete, and all ranks have arrived | [`Team::barrier`] |
/// | the memory of a put may be reused, or the data of a get has arrived | the [`Ticket`] of that operation, or the return of the blocking form |
/// | several independent sets of puts and gets, each completed separately | a [`Context`] for each, with [`Context::fence`] and [`Context::quiet`] |
///
/// # Streams and GPUs
/// | what the program needs | operation |
/// |---|---|
/// | operations that run one after another, without a wait in the program | one [`Stream`], by [`World::stream`](peerweave_core::World::stream) |
/// | operations that run at the same time | several streams, with teams of their own for collectives |
/// | an operation of one stream after an operation of another stream | [`Stream::record`], then [`Stream::wait_event`] |
/// | the time between two points of a stream | [`Event::elapsed_since`] |
/// | copies and fills within this PE | [`Stream::copy`], [`Stream::fill`] |
/// | a kernel before or after an operation | [`Stream::launch`] |
/// | a kernel that itself puts, waits or synchronises | [`Stream::launch`], with functions of `peerweave-device`; [`LaunchShape::cooperative`] if its blocks wait for each other |
/// | a stream of another library | [`World::adopt_stream`](peerweave_core::World::adopt_stream) |
/// | many calls that repeat on GPUs | capture of the calls into a graph, on a stream that the program has adopted |
///
/// # Form
/// The form with the short name takes a [`Stream`] and returns a [`Ticket`] immediately. Choose
/// this form if the program has other work to do during the operation, or if it enqueues several
/// operations in sequence. The form with `_blocking` takes less time for a single small operation.
///
/// | form | when |
/// |---|---|
/// | `_in_place`, such as [`Team::all_reduce_in_place`] | the result replaces the operand in the same buffer |
/// | `_nbi`, such as [`Team::put_nbi`] | many puts or gets that one quiet completes |
/// | in a [`Team::group`] | several operations as one; its sends and receives run at the same time |
/// | of a [`Context`] | like `_nbi`, with a quiet for this context only |
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
/// When a PE dies, a call that needs the dead PE fails on the other PEs within milliseconds, and
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
/// the last old handle is dropped. If an operation has failed, the memory that it writes has
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

/// MPI's functions, and the equivalents of these functions in this crate. "None" means that there
/// is no equivalent; the row says what to do instead.
///
/// | MPI | here |
/// |---|---|
/// | `MPI_Init`, `MPI_Finalize` | [`World::from_env`], [`World::finalize`](peerweave_core::World::finalize); both only [once](World#joining-twice) |
/// | `MPI_Initialized`, `MPI_Finalized` | none: a PE has joined if it has a [`World`]; calls after finalize return an error |
/// | `MPI_Init_thread`, `MPI_Query_thread` | no levels: every thread may call, in the order that [`threads`] describes |
/// | `MPI_Abort` | [`World::abort`](peerweave_core::World::abort): all processes exit with the given code |
/// | `MPI_Comm_rank`, `MPI_Comm_size` | [`Team::my_rank`], [`Team::size`] |
/// | `MPI_COMM_WORLD` | [`World::team`](peerweave_core::World::team) |
/// | `MPI_COMM_SELF` | [`World::team_of`](peerweave_core::World::team_of), with the list of this PE alone |
/// | `MPI_Comm_split` | [`Team::split`]; `MPI_UNDEFINED` is `None` |
/// | `MPI_Comm_create_group` | [`World::team_of`](peerweave_core::World::team_of): only the members call |
/// | `MPI_Comm_create` | [`Team::split`]: ranks outside the group pass `None` |
/// | `MPI_Comm_dup` | [`Team::split`], where every rank passes the same color and key |
/// | `MPI_Comm_free` | [`Team::destroy`] |
/// | `MPI_Comm_split_type` with `MPI_COMM_TYPE_SHARED` | [`World::local_team`](peerweave_core::World::local_team) |
/// | `MPI_Cart_create`, `MPI_Cart_sub` | [`Team::split_2d`](crate::Team::split_2d) for two dimensions; otherwise [`Team::split`] for each dimension |
/// | `MPI_Cart_shift`, `MPI_Cart_coords`, `MPI_Graph_create` | none: compute the ranks of neighbours |
/// | `MPI_Comm_group`, `MPI_Group_incl`, `MPI_Group_union`, ... | [`Team::members`], and lists of PEs for [`World::team_of`](peerweave_core::World::team_of) |
/// | `MPI_Group_translate_ranks` | [`Team::translate`]; [`Team::rank_of`] and [`Team::pe_of`] for the world |
/// | `MPI_Comm_spawn`, `MPI_Comm_connect`, `MPI_Intercomm_create` | none: the launcher starts all PEs of the job |
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
/// | `MPI_Reduce_local` | none: combine the elements in your program |
/// | `MPI_Reduce_scatter_block` | [`Team::reduce_scatter`] |
/// | `MPI_Reduce_scatter` with different counts | none: [`Team::reduce`], then [`Team::scatter_v`]; or pad the parts to equal lengths |
/// | `MPI_Gather`, `MPI_Allgather`, `MPI_Scatter` | [`Team::gather`], [`Team::all_gather`], [`Team::scatter`] |
/// | `MPI_Gatherv`, `MPI_Allgatherv`, `MPI_Scatterv` | [`Team::gather_v`], [`Team::all_gather_v`], [`Team::scatter_v`]: one [`Parts`] stands for `recvcounts` and `displs` |
/// | an `MPI_Allgather` of counts before an `MPI_Allgatherv` | [`Team::exchange_parts`] |
/// | `MPI_Alltoall`, `MPI_Alltoallv` | [`Team::all_to_all`], [`Team::all_to_all_v`], whose [`VectorCounts`] stand for four arrays |
/// | an `MPI_Alltoall` of counts before an `MPI_Alltoallv` | [`Team::exchange_counts`] |
/// | `MPI_Alltoallw` | none: sends and receives of the different types in one [`Team::group`] |
/// | `MPI_Neighbor_alltoall`, `MPI_Neighbor_allgather` | none: sends and receives in one [`Team::group`], or [`Team::put_signal`] to each neighbour |
/// | `MPI_IN_PLACE` | the forms whose names end with `_in_place` |
/// | `MPI_Send`, `MPI_Recv` | [`Team::send_blocking`], [`Team::recv_blocking`]; there are no tags: messages between two ranks match in order |
/// | `MPI_Sendrecv` | a send and a receive in one [`Team::group_blocking`] |
/// | `MPI_Ssend`, `MPI_Bsend`, `MPI_Rsend` | none: [`Team::send`] does not say when the peer receives, so let the peer answer with [`Team::signal`] |
/// | `MPI_Probe`, `MPI_Mprobe`, `MPI_Get_count` | none: both ranks know the length; otherwise send the length first |
/// | `MPI_ANY_SOURCE` | none: [`Team::put_signal`] with a signal word for each sender, and [`Team::wait_until_any`] |
/// | `MPI_Isend`, `MPI_Iallreduce`, ... and `MPI_Wait`, `MPI_Test` | the stream-ordered form, [`Ticket::wait`], [`Ticket::is_complete`] |
/// | `MPI_Waitall` | [`Stream::synchronize`], for all operations of a stream |
/// | `MPI_Waitany`, `MPI_Waitsome` | none: poll the tickets with [`Ticket::is_complete`] |
/// | `MPI_Request_free` | drop the [`Ticket`]: the operation continues, and [`Stream::synchronize`] returns its error |
/// | `MPI_Cancel` | none: an operation ends when it is complete, or at its deadline |
/// | `MPI_Allreduce_init`, `MPI_Send_init`, ... with `MPI_Start`, `MPI_Startall` | none: call the operation each time ([why](choosing#form)); on GPUs, capture the calls into a graph |
/// | `MPI_Psend_init`, `MPI_Pready`, `MPI_Parrived` | none: [`Team::put_signal`] for each partition, and [`Team::test`] of its signal word |
/// | `MPI_Type_contiguous`, `MPI_Type_create_struct` | arrays `[T; N]`, and structs with [`#[derive(Element)]`](trait@crate::Element#structs) |
/// | `MPI_Type_vector` | [`Team::put_strided`], [`Team::get_strided`], [`Team::all_to_all_strided`] |
/// | `MPI_Type_indexed`, `MPI_Pack`, `MPI_Unpack` | none: copy the elements into a contiguous buffer |
/// | `MPI_Win_allocate`, `MPI_Win_free` | [`World::alloc`](peerweave_core::World::alloc), [`Symmetric::release`]; every PE has the same length |
/// | `MPI_Win_create`, `MPI_Win_create_dynamic`, `MPI_Win_attach` | none: only memory of [`World::alloc`](peerweave_core::World::alloc) is accessible to other PEs |
/// | `MPI_Win_allocate_shared`, `MPI_Win_shared_query` | [`World::alloc`](peerweave_core::World::alloc), [`Team::peer_ptr`] |
/// | `MPI_Put`, `MPI_Get` | [`Team::put_nbi`], [`Team::get_nbi`] |
/// | `MPI_Rput`, `MPI_Rget` | [`Team::put`], [`Team::get`], and their [`Ticket`] |
/// | `MPI_Win_lock`, `MPI_Win_lock_all` with `MPI_LOCK_SHARED` | not needed: symmetric memory is accessible from its allocation to its release |
/// | `MPI_Win_lock` with `MPI_LOCK_EXCLUSIVE` | [`Lock::lock`]; allocate a lock for each rank that has data |
/// | `MPI_Win_unlock`, `MPI_Win_unlock_all` | [`World::quiet`](peerweave_core::World::quiet); after an exclusive lock, also [`LockGuard::unlock`] |
/// | `MPI_Win_flush`, `MPI_Win_flush_all` | [`World::quiet`](peerweave_core::World::quiet), for all targets; [`Context::quiet`] for the operations of one context |
/// | `MPI_Win_flush_local`, `MPI_Win_flush_local_all` | [`Ticket::wait`] of a [`Team::put`], [`Stream::synchronize`] |
/// | `MPI_Win_fence` | [`Team::barrier`] |
/// | `MPI_Win_post`, `MPI_Win_start`, `MPI_Win_complete`, `MPI_Win_wait` | [`Team::signal`], [`Team::put_signal`] and [`Team::wait_until`] |
/// | `MPI_Win_sync` | not needed: waits, tests and barriers order accesses |
/// | `MPI_Accumulate` | [`Team::atomic_add`], [`Team::atomic_and`], [`Team::atomic_or`], [`Team::atomic_xor`], for one integer of 32 or 64 bits; otherwise a [`Lock`] around a get and a put |
/// | `MPI_Get_accumulate`, `MPI_Fetch_and_op` | [`Team::atomic_fetch_add`], [`Team::atomic_fetch_and`], [`Team::atomic_fetch_or`], [`Team::atomic_fetch_xor`], [`Team::atomic_swap`] |
/// | `MPI_Compare_and_swap` | [`Team::atomic_compare_swap`] |
/// | `MPI_Get_processor_name` | none; [`World::local_pes`](peerweave_core::World::local_pes) returns the PEs of this machine |
/// | `MPI_Wtime` | `std::time::Instant`; on a stream, [`Event::elapsed_since`] |
/// | `MPI_Info`, `MPI_T_cvar_write` | [`WorldBuilder`], and the variables in [`environment`](crate::environment) |
/// | `MPI_Comm_set_errhandler`, `MPI_Error_string` | every call returns a `Result`; [`Error`] names the PE at fault, and every wait has a deadline |
/// | `MPI_File_*` | none: open the file on each PE, and access different ranges |
/// | `MPIX_Comm_shrink`, `MPIX_Comm_agree` (ULFM) | [`World::shrink`]: the remaining PEs agree on a smaller world |
/// | `MPIX_Comm_get_failed` (ULFM) | [`Error::blamed`], [`Team::failure`] |
/// | `MPIX_Comm_revoke` (ULFM) | not needed: a wait for a PE that has called [`World::shrink`] ends with an error |
///
/// There are no tags, no wildcards for the source, no derived datatypes and no intercommunicators.
pub mod from_mpi {}

/// OpenSHMEM's functions, and the equivalents of these functions in this crate. The table contains
/// all functions of OpenSHMEM 1.6. NVSHMEM's host functions have the same names as OpenSHMEM's
/// functions, with the prefix `nvshmem_`. "None" means that there is no equivalent; the row says
/// what to do instead.
///
/// | OpenSHMEM | here |
/// |---|---|
/// | `shmem_init`, `shmem_finalize` | [`World::from_env`], [`World::finalize`](peerweave_core::World::finalize); both only [once](World#joining-twice): share the [`World`] instead of a second `shmem_init` |
/// | `shmem_query_initialized` | none: a PE has joined if it has a [`World`] |
/// | `shmem_init_thread`, `shmem_query_thread` | no levels: every thread may call, in the order that [`threads`] describes |
/// | `shmem_global_exit` | [`World::abort`](peerweave_core::World::abort): all processes exit with the given code |
/// | `shmem_my_pe`, `shmem_n_pes` | [`World::my_pe`](peerweave_core::World::my_pe), [`World::n_pes`](peerweave_core::World::n_pes) |
/// | `shmem_info_get_name`, `shmem_info_get_version` | [`World::backend_name`](peerweave_core::World::backend_name), [`World::caps`](peerweave_core::World::caps); none for the version |
/// | `shmem_malloc`, `shmem_calloc`, `shmem_align`, `shmem_free` | [`alloc`](peerweave_core::World::alloc), [`alloc_zeroed`](peerweave_core::World::alloc_zeroed), [`alloc_aligned`](peerweave_core::World::alloc_aligned), [`Symmetric::release`] |
/// | `shmem_malloc_with_hints` | [`World::alloc`](peerweave_core::World::alloc): there are no hints |
/// | `shmem_realloc` | none: allocate, copy with [`Stream::copy`], release |
/// | global and static variables as symmetric memory | none: allocate with [`World::alloc`](peerweave_core::World::alloc) |
/// | `SHMEM_SYMMETRIC_SIZE` | [`WorldBuilder::heap_bytes`], `PEERWEAVE_HEAP_BYTES` |
/// | `shmem_ptr`, `shmem_team_ptr` | [`Team::peer_ptr`], and for kernels [`Team::peer_device_address`]: `None` if the memory is not mapped |
/// | `shmem_addr_accessible` | [`World::symmetric_of`](peerweave_core::World::symmetric_of) succeeds, or [`Team::peer_ptr`] is not `None` |
/// | `shmem_pe_accessible` | none: a one-sided operation on a PE that cannot be accessed returns [`Error::Unsupported`] |
/// | `shmem_put`, `shmem_get` | [`Team::put_blocking`], [`Team::get_blocking`]: the source is the first argument |
/// | `shmem_put_nbi`, `shmem_get_nbi` | [`Team::put_nbi_blocking`], [`Team::get_nbi_blocking`] |
/// | `shmem_iput`, `shmem_iget` | [`Team::put_strided_blocking`], [`Team::get_strided_blocking`] |
/// | `shmem_ibput`, `shmem_ibget` | the same methods with elements `[T; N]` ([`Symmetric::cast`]), if the distances are multiples of the block; otherwise a put or get for each block |
/// | `shmem_p`, `shmem_g` | [`Team::p_blocking`], [`Team::g_blocking`] |
/// | `shmem_put_signal`, `shmem_put_signal_nbi` | [`Team::put_signal_blocking`], [`Team::put_signal_nbi_blocking`], with `word.set(value)` or `word.add(value)` |
/// | `shmem_signal_set`, `shmem_signal_add` | [`Team::signal_blocking`] with `word.set(value)` or `word.add(value)` |
/// | `shmem_signal_fetch`, `shmem_signal_wait_until` | [`Team::signal_fetch`], [`Team::wait_until_blocking`] |
/// | `shmem_wait_until`, `shmem_test` | [`Team::wait_until_blocking`], [`Team::test`], of `(&symmetric, index)` |
/// | `shmem_wait_until_all`, `_any`, `_some` | [`Team::wait_until_all_blocking`], [`Team::wait_until_any_blocking`], [`Team::wait_until_some_blocking`]; the argument `exclude` corresponds to `status`, but the program need not exclude an index that has been returned |
/// | `shmem_test_all`, `_any`, `_some` | [`Team::test_all`], [`Team::test_any`], [`Team::test_some`] |
/// | `shmem_wait_until_all_vector`, `_any_vector`, `_some_vector` | [`Team::wait_until_all_vector_blocking`], [`Team::wait_until_any_vector_blocking`], [`Team::wait_until_some_vector_blocking`] |
/// | `shmem_test_all_vector`, `_any_vector`, `_some_vector` | [`Team::test_all_vector`], [`Team::test_any_vector`], [`Team::test_some_vector`] |
/// | `shmem_fence`, `shmem_quiet` | [`World::fence_blocking`](peerweave_core::World::fence_blocking), [`World::quiet_blocking`](peerweave_core::World::quiet_blocking) |
/// | `shmem_pe_quiet` | none: a [`Context`] for each set of targets, and [`Context::quiet`] |
/// | `shmem_team_create_ctx`, `shmem_ctx_create` | [`Team::context`]; the options `SHMEM_CTX_PRIVATE`, `SERIALIZED` and `NOSTORE` would change nothing |
/// | `shmem_ctx_put`, `shmem_ctx_get_nbi`, `shmem_ctx_iput`, `shmem_ctx_p`, `shmem_ctx_put_signal`, ... | [`Context::put`], [`Context::get`], [`Context::put_strided`], [`Context::p`], [`Context::put_signal`], ...: like the `nbi` forms, these methods return once the operation has been issued |
/// | `shmem_ctx_g`, `shmem_ctx_atomic_fetch_add`, ... | [`Context::g`], [`Context::atomic_fetch_add`], ...: a [`Ticket`] returns the value |
/// | `shmem_ctx_fence`, `shmem_ctx_quiet`, `shmem_ctx_get_team` | [`Context::fence`], [`Context::quiet`], [`Context::team`] |
/// | `shmem_ctx_session_start`, `shmem_ctx_session_stop` | none: these are hints; to pass several operations at once, use a [`Team::group`] |
/// | `shmem_ctx_destroy` | [`Context::quiet`], then drop the context; the drop does not wait |
/// | `SHMEM_CTX_DEFAULT` | the methods of [`Team`] |
/// | `shmem_atomic_fetch`, `_set`, `_swap`, `_compare_swap` | [`Team::atomic_fetch_blocking`], [`Team::atomic_set_blocking`], [`Team::atomic_swap_blocking`], [`Team::atomic_compare_swap_blocking`] |
/// | `shmem_atomic_add`, `_inc`, `_and`, `_or`, `_xor`, and `_fetch_add`, ... | [`Team::atomic_add_blocking`], [`Team::atomic_inc_blocking`], [`Team::atomic_and_blocking`], [`Team::atomic_fetch_add_blocking`], ..., of integers of 32 and 64 bits |
/// | `shmem_atomic_fetch_add_nbi`, ... | the stream-ordered form, such as [`Team::atomic_fetch_add`]: its [`Ticket`] returns the value |
/// | `shmem_set_lock`, `shmem_test_lock`, `shmem_clear_lock` | [`Lock::lock`], [`Lock::try_lock`], and [`LockGuard::unlock`] or dropping the guard; [`World::alloc_lock`](peerweave_core::World::alloc_lock) creates a lock |
/// | `shmem_barrier_all` | [`Team::barrier_blocking`] of the world's team |
/// | `shmem_sync_all`, `shmem_team_sync` | [`Team::sync_blocking`] |
/// | `shmem_barrier`, `shmem_sync` of an active set | [`Team::barrier_blocking`], [`Team::sync_blocking`] of a team of [`Team::split_strided`] |
/// | `shmem_broadcast`, `shmem_fcollect`, `shmem_alltoall` | [`Team::broadcast_blocking`], [`Team::all_gather_blocking`], [`Team::all_to_all_blocking`] |
/// | `shmem_alltoalls` | [`Team::all_to_all_strided_blocking`] |
/// | `shmem_collect` | [`Team::all_gather_v_blocking`] with [`Parts`] that contain the length of each rank's contribution; [`Team::exchange_parts`] collects these lengths from all ranks |
/// | `shmem_sum_reduce`, `shmem_prod_reduce`, `shmem_min_reduce`, `shmem_max_reduce` | [`Team::all_reduce_blocking`] with a [`ReduceOp`] |
/// | `shmem_and_reduce`, `shmem_or_reduce`, `shmem_xor_reduce` | [`Team::all_reduce_blocking`] with [`ReduceOp::And`], [`ReduceOp::Or`], [`ReduceOp::Xor`] |
/// | `shmem_sum_inscan`, `shmem_sum_exscan` | [`Team::scan_blocking`], [`Team::exclusive_scan_blocking`] with [`ReduceOp::Sum`] or another reduction |
/// | `SHMEM_TEAM_WORLD`, `SHMEM_TEAM_SHARED` | [`World::team`](peerweave_core::World::team), [`World::local_team`](peerweave_core::World::local_team) |
/// | `shmem_team_my_pe`, `shmem_team_n_pes` | [`Team::my_rank`], [`Team::size`] |
/// | `shmem_team_split_strided`, `shmem_team_split_2d` | [`Team::split_strided`], [`Team::split_2d`](crate::Team::split_2d); `SHMEM_TEAM_INVALID` is `None` |
/// | `shmem_team_translate_pe` | [`Team::translate`] |
/// | `shmem_team_get_config` | none: a team has no configuration, and contexts need no reservation |
/// | `shmem_team_destroy` | [`Team::destroy`] |
/// | `shmem_pcontrol` | none |
/// | `nvshmemx_*_on_stream` | the stream-ordered forms, such as [`Team::put`], [`Team::barrier`] |
/// | `nvshmemx_collective_launch` | [`Stream::launch_shaped`] with [`LaunchShape::cooperative`] |
/// | `nvshmem_*_reducescatter` | [`Team::reduce_scatter`] |
/// | `nvshmemx_init_attr` with a unique ID | [`WorldBuilder::job`] |
/// | `nvshmemx_mc_ptr`, `nvshmemx_buffer_register` | none: these are in `peerweave-nvshmem` and `peerweave-vmm` |
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
/// | `ncclGetUniqueId`, `ncclCommInitRank` | [`World::from_env`], under any launcher; [once](World#joining-twice) for each PE |
/// | `ncclCommInitRankConfig`, `ncclConfig_t` | [`WorldBuilder`], and the variables in [`environment`](crate::environment); the stream-ordered forms return a [`Ticket`] instead of `ncclInProgress` |
/// | `ncclCommInitAll` | none: start a process for each GPU; on the host backend, [`on_threads`](crate::on_threads) |
/// | `ncclCommFinalize`, `ncclCommDestroy` | [`World::finalize`](peerweave_core::World::finalize); [`Team::destroy`] for a team |
/// | `ncclCommUserRank`, `ncclCommCount`, `ncclCommCuDevice` | [`Team::my_rank`], [`Team::size`], [`Caps::device`] |
/// | `ncclCommSplit` | [`Team::split`]; `NCCL_SPLIT_NOCOLOR` is `None`; [`World::team_of`](peerweave_core::World::team_of) if only the members call |
/// | `ncclAllReduce`, `ncclReduce`, `ncclBroadcast`, `ncclAllGather`, `ncclReduceScatter`, `ncclAlltoAll`, `ncclGather`, `ncclScatter` | the methods of [`Team`] with these names |
/// | `ncclBcast` | [`Team::broadcast_in_place`] |
/// | `sendbuff == recvbuff` | the forms whose names end with `_in_place` |
/// | `ncclSend`, `ncclRecv` | [`Team::send`], [`Team::recv`] |
/// | `ncclPutSignal`, `ncclSignal`, `ncclWaitSignal` | [`Team::put_signal`], [`Team::signal`], [`Team::wait_until`] |
/// | `ncclGroupStart`, `ncclGroupEnd` | [`Team::group`], with a closure that makes the calls of the group on one team |
/// | `ncclGroupSimulateEnd` | none: it is in `peerweave-nccl` |
/// | sends and receives of different lengths in a group | [`Team::all_to_all_v`], [`Team::all_gather_v`], [`Team::gather_v`], [`Team::scatter_v`] |
/// | `cudaStream_t` | [`Stream`], by [`World::stream`](peerweave_core::World::stream), or [`World::adopt_stream`](peerweave_core::World::adopt_stream) for a stream that exists |
/// | `cudaStreamSynchronize` | [`Stream::synchronize`], or [`Ticket::wait`] for one operation |
/// | `cudaEventRecord`, `cudaStreamWaitEvent` | [`Stream::record`], [`Stream::wait_event`] |
/// | `cudaStreamBeginCapture` | the stream-ordered forms can be captured, on a stream that the program has adopted; [`Ticket::is_captured`] |
/// | `ncclMemAlloc`, `ncclMemFree` | [`World::alloc`](peerweave_core::World::alloc), [`Symmetric::release`] |
/// | `ncclCommRegister`, `ncclCommWindowRegister`, and their deregistrations | not needed: [`Symmetric`] memory is allocated on all PEs and registered with all PEs; memory of `cudaMalloc` is [`OnDevice`] without registration |
/// | `ncclSum`, `ncclProd`, `ncclMin`, `ncclMax`, `ncclAvg` | [`ReduceOp`] |
/// | `ncclRedOpCreatePreMulSum`, `ncclRedOpDestroy` | [`Reduction::pre_mul_sum`] |
/// | `ncclCommGetAsyncError`, `ncclCommAbort` | the errors that tickets and calls return; calls on a team that has failed return [`Error::Poisoned`]; [`World::abort`](peerweave_core::World::abort) ends the job |
/// | `ncclGetErrorString`, `ncclGetLastError` | the text of an [`Error`] |
/// | `ncclCommShrink` | [`World::shrink`], which determines the remaining PEs itself |
/// | `ncclCommRevoke` | not needed: a wait for a PE that has called [`World::shrink`] ends with an error |
/// | `ncclCommGrow` | none: the number of PEs never grows; `peerweave-nccl` has this function |
/// | `ncclDevCommCreate` | [`Stream::launch`] of kernels that communicate; NCCL's own device API is in `peerweave-nccl` |
/// | `ncclCommSuspend`, `ncclCommResume`, `ncclCommMemStats` | none: they are in `peerweave-nccl` |
/// | `NCCL_ALGO`, `NCCL_PROTO` | `PEERWEAVE_ROUTE` |
///
/// Calls take no counts: the length of a buffer, in elements, is the count. If a length is wrong,
/// the call returns an error before it enqueues anything.
pub mod from_nccl {}

/// Functions of `torch.distributed`, and the equivalents of these functions in this crate.
///
/// | `torch.distributed` | here |
/// |---|---|
/// | `torchrun --nproc-per-node 4 train.py` | `peerweave run -n 4 -- train`, or `torchrun --no-python` |
/// | `init_process_group`, `destroy_process_group` | [`World::from_env`], [`World::finalize`](peerweave_core::World::finalize); both only [once](World#joining-twice) |
/// | `is_initialized` | none: a PE has joined if it has a [`World`] |
/// | `get_backend` | [`World::backend_name`](peerweave_core::World::backend_name) |
/// | `get_rank`, `get_world_size` | [`World::my_pe`](peerweave_core::World::my_pe), [`World::n_pes`](peerweave_core::World::n_pes); of a group: [`Team::my_rank`], [`Team::size`] |
/// | `new_group(ranks)` | [`World::team_of`](peerweave_core::World::team_of), which only the members call; or [`Team::split`], which all ranks call |
/// | `split_group`, `new_subgroups_by_enumeration` | [`Team::split`] |
/// | `new_subgroups` | [`World::local_team`](peerweave_core::World::local_team), for a group for each machine; otherwise [`Team::split`] |
/// | `init_device_mesh` with two dimensions | [`Team::split_2d`](crate::Team::split_2d) |
/// | `get_process_group_ranks`, `get_group_rank`, `get_global_rank` | [`Team::members`], [`Team::rank_of`], [`Team::pe_of`] |
/// | `all_reduce(tensor, ReduceOp.SUM)` | [`Team::all_reduce_in_place`] with [`ReduceOp::Sum`] |
/// | `ReduceOp.AVG`, `PRODUCT`, `MIN`, `MAX`, `PREMUL_SUM` | [`ReduceOp::Avg`], [`ReduceOp::Prod`], [`ReduceOp::Min`], [`ReduceOp::Max`], [`Reduction::pre_mul_sum`] |
/// | `ReduceOp.BAND`, `BOR`, `BXOR` | [`ReduceOp::And`], [`ReduceOp::Or`], [`ReduceOp::Xor`] |
/// | `broadcast`, `reduce` | [`Team::broadcast_in_place`], [`Team::reduce_in_place`] |
/// | `gather`, `scatter` | [`Team::gather`], [`Team::scatter`]: the parts are in one buffer, not in a list |
/// | `all_gather_into_tensor`, `reduce_scatter_tensor`, `all_to_all_single` | [`Team::all_gather`], [`Team::reduce_scatter`], [`Team::all_to_all`] |
/// | `all_gather` of tensors of different sizes, `all_to_all_single` with split sizes, `all_to_all` | [`Team::all_gather_v`], [`Team::all_to_all_v`]; [`Team::exchange_parts`] and [`Team::exchange_counts`] for unknown sizes |
/// | `all_gather_object`, `gather_object`, `scatter_object_list`, `broadcast_object_list` | none: serialise the object into bytes, and move them with [`Team::all_gather_v`], [`Team::gather_v`], [`Team::scatter_v`] or [`Team::broadcast`] |
/// | `send`, `recv`, `isend`, `irecv` | [`Team::send_blocking`], [`Team::recv_blocking`], [`Team::send`], [`Team::recv`]; there are no tags, and `recv` names its source |
/// | `batch_isend_irecv`, coalesced collectives | [`Team::group`] |
/// | `async_op=True`, `work.wait()`, `work.is_completed()` | the stream-ordered form, [`Ticket::wait`], [`Ticket::is_complete`] |
/// | `barrier` | [`Team::barrier_blocking`] |
/// | `monitored_barrier` | [`Team::barrier_blocking`]: [`Error::blamed`] of its error names all ranks that did not arrive |
/// | `timeout=` | `PEERWEAVE_DEADLINE`, or [`WorldBuilder`]; the deadline applies to every operation |
/// | `TCPStore`, `store.set`, `store.get` | none in a [`World`]: exchange values by collectives; a [`Rendezvous`](crate::bootstrap::Rendezvous) of your own has `put` and `get` |
/// | `_symmetric_memory.empty`, `rendezvous` | [`World::alloc`](peerweave_core::World::alloc) |
/// | `get_buffer(rank, ...)`, `buffer_ptrs` of `_symmetric_memory` | [`Team::peer_ptr`], [`Team::peer_device_address`] |
/// | `put_signal`, `wait_signal`, `barrier` of `_symmetric_memory` | [`Team::signal`], [`Team::wait_until`], [`Team::barrier`] |
/// | `torch.cuda.Stream`, `torch.cuda.CUDAGraph` | [`World::adopt_stream`](peerweave_core::World::adopt_stream); the stream-ordered forms can be captured |
/// | restart by `torchrun --max-restarts` | start the job again; or [`World::shrink`], which continues without the PEs that died |
/// | `DistributedDataParallel`, `FullyShardedDataParallel` | none: an all-reduce of the gradients, as in the example `train-digits` |
pub mod from_torch {}
