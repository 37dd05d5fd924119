//! Windows, one-sided operations, memory, device communicators, parameters.

mod common;

use std::ffi::CStr;

use common::*;
use peerweave_fakes::child;

const I32: i32 = 2;

#[test]
fn window_gives_access_to_the_memory_of_every_rank() {
    fakes().run(|| {
        ranks(2, |rank, comm, stream| {
            let (mut memory, mut window, mut pointer) = (0, 0, 0);
            ok(ncclMemAlloc(&mut memory, 100));
            assert_eq!(ncclCommWindowRegister(comm, memory + 8, 64, &mut window, 1), 4, "alignment");
            assert_eq!(ncclCommWindowRegister(comm, memory, 0, &mut window, 1), 4);
            assert_eq!(ncclCommWindowRegister(comm, memory, 100, &mut window, 0x100), 4);
            ok(ncclCommWindowRegister(comm, memory, 100, &mut window, 1));
            ok(ncclWinGetUserPtr(comm, window, &mut pointer));
            assert_eq!(pointer, memory);
            ok(ncclGetLsaDevicePointer(window, 4, rank, &mut pointer));
            assert_eq!(pointer, memory + 4);
            let mut peer = 0;
            ok(ncclGetPeerDevicePointer(window, 0, 1 - rank, &mut peer));
            assert_ne!(peer, 0);
            assert_eq!(ncclGetLsaDevicePointer(window, 0, 2, &mut pointer), 4);
            assert_eq!(ncclGetLsaDevicePointer(window, 100, 0, &mut pointer), 4);
            ok(ncclGetLsaMultimemDevicePointer(window, 0, &mut pointer));
            assert_eq!(pointer, 0, "expected null, because multicast is off");
            assert_eq!(
                ncclPutSignal(buffer(&[0]), 1, I32, 1 - rank, window, 96, 0, 0, 0, comm, stream),
                4,
                "the source is in no window"
            );
            let from = memory + 40;
            write(from, 7 + rank);
            ok(ncclPutSignal(from, 1, I32, 1 - rank, window, 96, 0, 0, 0, comm, stream));
            ok(ncclSignal(1 - rank, 0, 0, 0, comm, stream));
            ok(ncclWaitSignal(1, &[2, 1 - rank, 0, 0], comm, stream));
            assert_eq!(cuStreamSynchronize(stream), 0);
            assert_eq!(read::<i32>(memory + 96, 1), [8 - rank]);
            assert_eq!(
                ncclPutSignal(from, 2, I32, 1 - rank, window, 96, 0, 0, 0, comm, stream),
                4,
                "the target is beyond the end of the window"
            );
            assert_eq!(
                ncclPutSignal(from, 1, I32, 1 - rank, window, 0, 1, 0, 0, comm, stream),
                4,
                "the communicator has one signal, so index 1 is invalid"
            );
            assert_eq!(ncclWaitSignal(1, &[1, 2, 0, 0], comm, stream), 4);
            // The signals were taken: another wait does not find them.
            ok(ncclWaitSignal(1, &[1, 1 - rank, 0, 0], comm, stream));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_ne!(cuStreamQuery(stream), 0);
            ok(ncclCommAbort(comm));
            assert_eq!(cuStreamSynchronize(stream), 0);
            ok(ncclMemFree(memory));
            assert_eq!(ncclMemFree(memory), 4);
        });
        assert_eq!((count("windows"), count("left_behind"), count("allocations")), (0, 2, 0));
    });
}

#[test]
fn communicator_refuses_to_deregister_foreign_windows() {
    fakes().run(|| {
        use_device(0);
        let mut comms = [0; 2];
        ok(ncclCommInitAll(comms.as_mut_ptr(), 2, std::ptr::null()));
        let (mut memory, mut windows) = ([0; 2], [0; 2]);
        for memory in &mut memory {
            ok(ncclMemAlloc(memory, 4096));
        }
        ok(ncclGroupStart());
        for rank in 0..2 {
            ok(ncclCommWindowRegister(comms[rank], memory[rank], 4096, &mut windows[rank], 0));
        }
        ok(ncclGroupEnd());
        assert!(windows.iter().all(|window| *window != 0));
        assert_eq!(count("windows"), 2);
        assert_eq!(ncclCommWindowDeregister(comms[0], windows[1]), 4, "the window belongs to another communicator");
        let mut handle = 0;
        ok(ncclCommRegister(comms[0], memory[0], 4096, &mut handle));
        assert_eq!(count("registrations"), 1);
        ok(ncclCommDeregister(comms[0], handle));
        assert_eq!(ncclCommDeregister(comms[0], handle), 4);
        for rank in 0..2 {
            ok(ncclCommWindowDeregister(comms[rank], windows[rank]));
            ok(ncclCommWindowDeregister(comms[rank], 0));
            ok(ncclCommDestroy(comms[rank]));
            ok(ncclMemFree(memory[rank]));
        }
        assert_eq!((count("windows"), count("left_behind"), count("allocated_bytes")), (0, 0, 0));
    });
}

#[test]
fn use_of_a_deregistered_window_ends_the_process() {
    const ME: &str = "use_of_a_deregistered_window_ends_the_process";
    if child().is_some() {
        ranks(1, |_, comm, _| {
            let (mut memory, mut window, mut pointer) = (0, 0, 0);
            ok(ncclMemAlloc(&mut memory, 4096));
            ok(ncclCommWindowRegister(comm, memory, 4096, &mut window, 1));
            ok(ncclCommWindowDeregister(comm, window));
            ncclGetLsaDevicePointer(window, 0, 0, &mut pointer);
        });
        return;
    }
    let output = fakes().run_child(ME);
    assert!(output.stderr.contains("fake nccl: use of a deregistered window"), "{output}");
}

/// Returns a struct of this many bytes that begins with NCCL's header.
fn versioned(bytes: usize, magic: u32, version: u32) -> Vec<u64> {
    let mut words = vec![0; bytes / 8 + 2];
    words[0] = bytes as u64;
    words[1] = u64::from(magic) | u64::from(version) << 32;
    words
}

fn int(words: &[u64], at: usize) -> i32 {
    (words[at / 8] >> (at % 8 * 8)) as i32
}

#[test]
fn device_communicator_has_the_layout_of_the_nccl_version() {
    fakes().run(|| {
        ranks(2, |rank, comm, _| {
            let mut properties = versioned(152, 0xcafe_beef, 23203);
            ok(ncclCommQueryProperties(comm, properties.as_mut_ptr().cast()));
            assert_eq!((int(&properties, 16), int(&properties, 20), int(&properties, 24)), (rank, 2, rank));
            assert_eq!((int(&properties, 40), properties[17]), (1, 248));
            let mut old = versioned(40, 0xcafe_beef, 22902);
            old[5] = 77;
            ok(ncclCommQueryProperties(comm, old.as_mut_ptr().cast()));
            assert_eq!((int(&old, 20), old[5]), (2, 77), "bytes beyond the end of the struct must not change");
            assert_eq!(ncclCommQueryProperties(comm, versioned(152, 1, 23203).as_mut_ptr().cast()), 4);
            assert_eq!(ncclCommQueryProperties(comm, versioned(152, 0xcafe_beef, 23300).as_mut_ptr().cast()), 5);

            let mut wanted = versioned(120, 0xcafe_beef, 23203);
            wanted[5] = 2; // lsaBarrierCount
            let mut device = vec![u64::MAX; 32];
            ok(ncclDevCommCreate(comm, wanted.as_ptr().cast(), device.as_mut_ptr().cast()));
            assert_eq!(device[0], 0xcafe_beef | 23203 << 32);
            assert_eq!((int(&device, 8), int(&device, 12), int(&device, 20), int(&device, 24)), (rank, 2, rank, 2));
            assert_eq!(device[31], u64::MAX, "bytes beyond the 248 bytes of the struct must not change");
            assert!(count("device_comms") > 0);
            ok(ncclDevCommDestroy(comm, device.as_ptr().cast()));
            assert_eq!(ncclDevCommDestroy(comm, device.as_ptr().cast()), 4);
            wanted[8] = 1; // ginSignalCount, without a connection
            assert_eq!(ncclDevCommCreate(comm, wanted.as_ptr().cast(), device.as_mut_ptr().cast()), 4);
            let newer = versioned(120, 0xcafe_beef, 23300);
            assert_eq!(ncclDevCommCreate(comm, newer.as_ptr().cast(), device.as_mut_ptr().cast()), 5);
            ok(ncclCommDestroy(comm));
        });
    });
}

#[test]
fn nccl_parameter_of_type_i64_cannot_be_read_as_i8() {
    fakes().env("NCCL_FAKE_I64", "-5").run(|| {
        let (mut handle, mut wide, mut narrow) = (0, 0, 0);
        ok(ncclParamBind(&mut handle, c"NCCL_FAKE_I64".as_ptr()));
        ok(ncclParamGetI64(handle, &mut wide));
        assert_eq!((wide, ncclParamGetI8(handle, &mut narrow)), (-5, 4));
        assert_eq!(ncclParamBind(&mut handle, c"NCCL_NOT_THERE".as_ptr()), 4);
        let (mut text, mut length) = (std::ptr::null(), 0);
        ok(ncclParamGetParameter(c"NCCL_DEBUG_LEVELS".as_ptr(), &mut text, &mut length));
        // SAFETY: the library gives a C string.
        assert_eq!((unsafe { CStr::from_ptr(text) }, length), (c"NONE", 4));
        let (mut table, mut keys) = (std::ptr::null(), 0);
        ok(ncclParamGetAllParameterKeys(&mut table, &mut keys));
        assert_eq!(keys, 7);
    });
}
