//! Data-parallel training: each PE trains on its share of every batch, and the gradients are added
//! up over all PEs.
#![forbid(unsafe_code)]

use clap::Parser;
use peerweave::{Rank, ReduceOp, World};
use peerweave_examples::digits::Digits;
use peerweave_examples::digits_model::{LEARNING_RATE, Model, PARAMETERS};
use peerweave_examples::share;
use std::error::Error;

/// Seed for the order of the images and for the initial parameters.
const SEED: u64 = 1;

/// Trains a network to read handwritten digits, on any number of PEs.
#[derive(Parser)]
struct Args {
    /// Number of passes over the training images
    #[arg(long, default_value_t = 20)]
    epochs: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let world = World::from_env()?;
    let team = world.team();
    let (me, n) = (team.my_rank().index(), team.size());

    // Every PE computes the same split and the same batches; no images are sent.
    let digits = Digits::embedded()?;
    let split = digits.split(SEED)?;

    // The initial parameters differ among PEs, so that training works only if the broadcast works.
    let mut model = Model::new(SEED + me as u64);
    team.broadcast_in_place_blocking(model.parameters_mut(), Rank::new(0))?;

    let mut gradient = vec![0.0; PARAMETERS];
    let summed = world.alloc::<f32>(PARAMETERS)?;
    for epoch in 1..=args.epochs {
        let mut loss = [0.0];
        for batch in split.batches(SEED, epoch) {
            // The all-reduce turns sums over shares into sums over the batch, so every PE takes the
            // same step, bit for bit.
            loss[0] += model.gradient(&digits, &batch[share(batch.len(), me, n)], &mut gradient);
            summed.copy_from(&gradient)?;
            team.all_reduce_in_place_blocking(&summed, ReduceOp::Sum)?;
            summed.copy_to(&mut gradient)?;
            model.apply(&gradient, batch.len(), LEARNING_RATE);
        }
        team.all_reduce_in_place_blocking(&mut loss, ReduceOp::Sum)?;
        if me == 0 {
            println!("epoch {epoch:>2}: loss {:.6} while learning", loss[0] / split.train.len() as f64);
        }
    }

    // All PEs took the same steps, so they have the parameters of rank 0.
    let mut first = model.parameters().to_vec();
    team.broadcast_in_place_blocking(&mut first, Rank::new(0))?;
    assert_eq!(first, model.parameters(), "the parameters of this PE differ from those of rank 0");

    // Evaluates the model, each PE on its share of the images.
    let mut loss = [model.loss(&digits, &split.train[share(split.train.len(), me, n)])];
    let mut correct = [model.accuracy(&digits, &split.test[share(split.test.len(), me, n)]).correct as u64];
    team.all_reduce_in_place_blocking(&mut loss, ReduceOp::Sum)?;
    team.all_reduce_in_place_blocking(&mut correct, ReduceOp::Sum)?;
    if me == 0 {
        let (correct, images) = (correct[0], split.test.len());
        println!("accuracy {:.2} %: {correct} of {images} test images are correct", 100.0 * correct as f64 / images as f64);
        println!("final loss {:.10} with PEs: {n}", loss[0] / split.train.len() as f64);
    }

    summed.release()?;
    assert!(world.finalize()?.is_clean());
    Ok(())
}
