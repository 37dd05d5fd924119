//! Tests of an all_reduce in which one rank does not make the call.

use crate::world::{Given, World};
use peerweave_collectives::Algorithm;
use peerweave_grid::JobError;
use peerweave_types::{FailureKind, KernelOp, Pe};
use std::time::{Duration, Instant};

#[test]
fn every_all_reduce_algorithm_reports_which_rank_is_missing() {
    for algorithm in Algorithm::ALL {
        // Rank 1 is PE 2.
        let mut world = World::with_deadline(4, &[3, 2, 0], 1, Duration::from_secs(2));
        let given = Given { algorithm, count: 600, ..Given::default() };
        let start = Instant::now();
        let error = world.launch::<f32>(&given, |rank| rank != 1).expect_err("the call fails, because rank 1 is missing");
        assert!(start.elapsed() < Duration::from_secs(20), "{algorithm:?}: the call failed after {:?}", start.elapsed());
        let JobError::Failed { report, .. } = &error else { panic!("{algorithm:?}: {error}, expected a failure with a report") };
        assert_eq!((report.kind(), report.missing_pe()), (Some(FailureKind::Deadline), Some(Pe::new(2))), "{error}");
        assert_eq!(report.0.operation, KernelOp::AllReduce as u32, "{error}");
    }
}
