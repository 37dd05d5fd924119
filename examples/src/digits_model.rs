//! A small network that reads handwritten digits: 64 pixels, 32 hidden units (tanh), 10 classes
//! (softmax, cross entropy).
//!
//! Nothing here communicates. [`Model::gradient`] returns *sums* over the given images, so that the
//! sums of several PEs add up to the sum over the whole batch. [`Model::apply`] divides by the size
//! of the whole batch.
//!
//! Invariant: PEs exchange parameters and gradients as `f32`; all other arithmetic is `f64`. So
//! cutting a batch into shares changes a gradient only by the rounding of one `f32` per share and
//! parameter.

use crate::digits::{CLASSES, Digits, PIXELS, SplitMix64};

/// Number of hidden units.
pub const HIDDEN: usize = 32;

/// Number of parameters of the network, and of elements of a gradient.
pub const PARAMETERS: usize = HIDDEN * PIXELS + HIDDEN + CLASSES * HIDDEN + CLASSES;

/// Learning rate for batches of [`crate::digits::BATCH`]: after 30 epochs more than 96 % of the
/// test images are classified correctly. Training diverges with four times this rate.
pub const LEARNING_RATE: f64 = 0.5;

/// The network. All parameters are in one list, so that a gradient is one buffer for one
/// all-reduce.
///
/// Order of the list: weights from pixels to hidden units (`HIDDEN` rows of `PIXELS`), biases of
/// the hidden units, weights from hidden units to classes (`CLASSES` rows of `HIDDEN`), biases of
/// the classes.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    parameters: Vec<f32>,
}

/// The result of a classification: how many images of a set were classified correctly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accuracy {
    /// Number of images that were classified correctly.
    pub correct: usize,
    /// Number of images in the set.
    pub images: usize,
}

impl Accuracy {
    /// Returns the fraction of correctly classified images, in 0.0..=1.0; 0.0 for an empty set.
    pub fn fraction(&self) -> f64 {
        self.correct as f64 / self.images.max(1) as f64
    }
}

/// The four parts of a list of [`PARAMETERS`] numbers, in the order of [`Model`].
struct Parts<'a, T> {
    to_hidden: &'a [T],
    hidden_bias: &'a [T],
    to_class: &'a [T],
    class_bias: &'a [T],
}

impl<'a, T> Parts<'a, T> {
    fn of(list: &'a [T]) -> Self {
        let (to_hidden, rest) = list.split_at(HIDDEN * PIXELS);
        let (hidden_bias, rest) = rest.split_at(HIDDEN);
        let (to_class, class_bias) = rest.split_at(CLASSES * HIDDEN);
        Self { to_hidden, hidden_bias, to_class, class_bias }
    }
}

impl Model {
    /// Creates an untrained network. Weights are uniform in ±1/√inputs of their unit, biases are
    /// zero. Equal seeds give equal networks on every PE.
    pub fn new(seed: u64) -> Self {
        let mut generator = SplitMix64::new(seed);
        let mut parameters = Vec::with_capacity(PARAMETERS);
        for (units, inputs) in [(HIDDEN, PIXELS), (CLASSES, HIDDEN)] {
            let bound = 1.0 / (inputs as f64).sqrt();
            parameters.extend((0..units * inputs).map(|_| ((2.0 * generator.next_f64() - 1.0) * bound) as f32));
            parameters.extend(std::iter::repeat_n(0.0, units));
        }
        Self { parameters }
    }

    /// Returns the [`PARAMETERS`] parameters.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Returns the parameters as a mutable slice, for example to copy the parameters of another PE.
    pub fn parameters_mut(&mut self) -> &mut [f32] {
        &mut self.parameters
    }

    /// Writes the gradient of the loss, summed over `samples`, to `out`, and returns the summed
    /// loss.
    ///
    /// The loss of one image is minus the natural logarithm of the probability that the network
    /// assigns to its digit. Without samples, `out` and the loss are zero. [`Model::apply`] divides
    /// by the number of samples; this function does not.
    ///
    /// # Panics
    /// If `out` does not have [`PARAMETERS`] elements or a sample is not an image of `digits`.
    pub fn gradient(&self, digits: &Digits, samples: &[usize], out: &mut [f32]) -> f64 {
        assert_eq!(out.len(), PARAMETERS, "gradient: out has {} elements, expected {PARAMETERS}", out.len());
        let model = Parts::of(&self.parameters);
        let mut to_hidden = vec![0.0_f64; HIDDEN * PIXELS];
        let mut hidden_bias = [0.0_f64; HIDDEN];
        let mut to_class = [[0.0_f64; HIDDEN]; CLASSES];
        let mut class_bias = [0.0_f64; CLASSES];
        let mut loss = 0.0;

        for &sample in samples {
            let image = digits.image(sample);
            let (hidden, mut by_score, sample_loss) = self.forward(image, digits.label(sample));
            loss += sample_loss;
            // Softmax and cross entropy together: the derivative by a score is the probability,
            // minus one for the correct digit.
            by_score[digits.label(sample)] -= 1.0;

            let mut by_hidden = [0.0; HIDDEN];
            for (class, &by) in by_score.iter().enumerate() {
                class_bias[class] += by;
                let weights = &model.to_class[class * HIDDEN..(class + 1) * HIDDEN];
                for unit in 0..HIDDEN {
                    to_class[class][unit] += by * hidden[unit];
                    by_hidden[unit] += by * f64::from(weights[unit]);
                }
            }
            for unit in 0..HIDDEN {
                let by = by_hidden[unit] * (1.0 - hidden[unit] * hidden[unit]);
                hidden_bias[unit] += by;
                let row = &mut to_hidden[unit * PIXELS..(unit + 1) * PIXELS];
                for (sum, &pixel) in row.iter_mut().zip(image) {
                    *sum += by * f64::from(pixel);
                }
            }
        }

        let sums = to_hidden.iter().chain(&hidden_bias).chain(to_class.as_flattened()).chain(&class_bias);
        for (out, &sum) in out.iter_mut().zip(sums) {
            *out = sum as f32;
        }
        loss
    }

    /// Makes one training step: subtracts the mean gradient, multiplied by the learning rate, from
    /// the parameters. `gradient` is the sum over the `images` images of all PEs.
    ///
    /// # Panics
    /// If `gradient` does not have [`PARAMETERS`] elements or `images` is zero.
    pub fn apply(&mut self, gradient: &[f32], images: usize, learning_rate: f64) {
        assert_eq!(gradient.len(), PARAMETERS, "apply: gradient has {} elements, expected {PARAMETERS}", gradient.len());
        assert!(images > 0, "apply: images is 0, expected at least 1");
        let step = learning_rate / images as f64;
        for (parameter, &by) in self.parameters.iter_mut().zip(gradient) {
            *parameter = (f64::from(*parameter) - step * f64::from(by)) as f32;
        }
    }

    /// Returns the loss summed over `samples`, as [`Model::gradient`] does, without computing the
    /// gradient.
    ///
    /// # Panics
    /// If a sample is not an image of `digits`.
    pub fn loss(&self, digits: &Digits, samples: &[usize]) -> f64 {
        samples.iter().map(|&sample| self.forward(digits.image(sample), digits.label(sample)).2).sum()
    }

    /// Counts how many of `samples` the network classifies correctly.
    ///
    /// # Panics
    /// If a sample is not an image of `digits`.
    pub fn accuracy(&self, digits: &Digits, samples: &[usize]) -> Accuracy {
        let right = |&&sample: &&usize| {
            let label = digits.label(sample);
            let (_, probabilities, _) = self.forward(digits.image(sample), label);
            probabilities.iter().enumerate().all(|(class, &other)| class == label || other < probabilities[label])
        };
        Accuracy { correct: samples.iter().filter(right).count(), images: samples.len() }
    }

    /// Computes the hidden units, the probabilities of the digits, and the loss for one image.
    fn forward(&self, image: &[f32; PIXELS], label: usize) -> ([f64; HIDDEN], [f64; CLASSES], f64) {
        let model = Parts::of(&self.parameters);
        let mut hidden = [0.0; HIDDEN];
        for (unit, value) in hidden.iter_mut().enumerate() {
            let weights = &model.to_hidden[unit * PIXELS..(unit + 1) * PIXELS];
            let mut sum = f64::from(model.hidden_bias[unit]);
            for (&weight, &pixel) in weights.iter().zip(image) {
                sum += f64::from(weight) * f64::from(pixel);
            }
            *value = sum.tanh();
        }
        let mut scores = [0.0; CLASSES];
        for (class, score) in scores.iter_mut().enumerate() {
            let weights = &model.to_class[class * HIDDEN..(class + 1) * HIDDEN];
            *score = f64::from(model.class_bias[class]);
            for (&weight, &value) in weights.iter().zip(&hidden) {
                *score += f64::from(weight) * value;
            }
        }
        // Subtracts the greatest score, so that no exponential overflows.
        let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exponentials = scores.map(|score| (score - greatest).exp());
        let total: f64 = exponentials.iter().sum();
        let loss = total.ln() - (scores[label] - greatest);
        (hidden, exponentials.map(|value| value / total), loss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digits::{BATCH, Split, share};

    const SEED: u64 = 1;

    fn data() -> (Digits, Split) {
        let digits = Digits::embedded().unwrap();
        let split = digits.split(SEED).unwrap();
        (digits, split)
    }

    /// Computes the sum over a batch as `ranks` PEs do: a sum per share, added in `f32`.
    fn summed(model: &Model, digits: &Digits, batch: &[usize], ranks: usize, out: &mut [f32]) -> f64 {
        let mut part = vec![0.0; PARAMETERS];
        out.fill(0.0);
        (0..ranks)
            .map(|rank| {
                let samples = &batch[share(batch.len(), rank, ranks)];
                let loss = model.gradient(digits, samples, &mut part);
                for (sum, part) in out.iter_mut().zip(&part) {
                    *sum += part;
                }
                loss
            })
            .sum()
    }

    fn trained(ranks: usize, epochs: u64) -> (Model, f64) {
        let (digits, split) = data();
        let mut model = Model::new(SEED);
        let mut gradient = vec![0.0; PARAMETERS];
        for epoch in 0..epochs {
            for batch in split.batches(SEED, epoch) {
                summed(&model, &digits, &batch, ranks, &mut gradient);
                model.apply(&gradient, batch.len(), LEARNING_RATE);
            }
        }
        let loss = model.loss(&digits, &split.train) / split.train.len() as f64;
        (model, loss)
    }

    #[test]
    fn gradient_equals_the_slope_of_the_loss() {
        let (digits, split) = data();
        let samples = &split.train[..16];
        let mut model = Model::new(SEED);
        let mut gradient = vec![0.0; PARAMETERS];
        let loss = model.gradient(&digits, samples, &mut gradient);
        assert!((loss - model.loss(&digits, samples)).abs() < 1e-12);

        // Compares some parameters of every part. A few belong to pixels that are always white;
        // their slope is 0.
        let mut compared = 0;
        for index in (0..PARAMETERS).step_by(7).chain(PARAMETERS - 60..PARAMETERS) {
            let here = model.parameters[index];
            let [above, below] = [here + 1e-3, here - 1e-3];
            model.parameters[index] = above;
            let loss_above = model.loss(&digits, samples);
            model.parameters[index] = below;
            let loss_below = model.loss(&digits, samples);
            model.parameters[index] = here;

            let slope = (loss_above - loss_below) / (f64::from(above) - f64::from(below));
            let found = f64::from(gradient[index]);
            assert!(
                (slope - found).abs() < 1e-5 * (1.0 + slope.abs()),
                "parameter {index}: gradient {found}, expected the slope {slope}"
            );
            compared += usize::from(slope != 0.0);
        }
        assert!(compared > 250, "only {compared} slopes were not zero");
    }

    #[test]
    fn gradients_of_shares_add_up_to_the_gradient_of_the_batch() {
        let (digits, split) = data();
        let model = Model::new(SEED);
        let batch = &split.train[..BATCH];
        let mut whole = vec![0.0; PARAMETERS];
        let loss = model.gradient(&digits, batch, &mut whole);
        let largest = whole.iter().fold(0.0_f32, |most, by| most.max(by.abs()));
        for ranks in [1, 2, 3, 7, 8, 241] {
            let mut sum = vec![0.0; PARAMETERS];
            let summed_loss = summed(&model, &digits, batch, ranks, &mut sum);
            assert!((summed_loss - loss).abs() < 1e-9 * loss);
            for (index, (sum, whole)) in sum.iter().zip(&whole).enumerate() {
                // One rounding per share, each of half a unit in the last place of a partial sum.
                let bound = ranks as f32 * f32::EPSILON * largest;
                assert!((sum - whole).abs() <= bound, "{ranks} shares, parameter {index}: sum {sum}, expected {whole}");
            }
        }
    }

    #[test]
    fn gradient_without_samples_is_zero() {
        let (digits, _) = data();
        let mut gradient = vec![1.0; PARAMETERS];
        assert_eq!(Model::new(SEED).gradient(&digits, &[], &mut gradient), 0.0);
        assert!(gradient.iter().all(|&by| by == 0.0));
    }

    #[test]
    fn training_on_one_pe_generalises_to_the_test_images() {
        let (digits, split) = data();
        let untrained = Model::new(SEED).accuracy(&digits, &split.test);
        assert!(untrained.fraction() < 0.3, "{untrained:?} before training, expected less than 0.3");
        let (model, loss) = trained(1, 30);
        let accuracy = model.accuracy(&digits, &split.test);
        assert!(accuracy.fraction() > 0.93, "{accuracy:?} after training, expected more than 0.93");
        assert!(loss < 0.2, "loss {loss} after training, expected less than 0.2");
    }

    #[test]
    fn training_loss_is_equal_for_any_number_of_pes() {
        let (_, alone) = trained(1, 4);
        for ranks in [2, 3, 7, 8] {
            let (_, together) = trained(ranks, 4);
            assert!((together - alone).abs() < 1e-5 * alone, "loss {together} with {ranks} PEs, expected {alone} as with one PE");
        }
    }

    #[test]
    fn initial_weights_depend_on_the_seed() {
        assert_eq!(Model::new(1), Model::new(1));
        assert_ne!(Model::new(1), Model::new(2));
        assert_eq!(Model::new(1).parameters().len(), PARAMETERS);
    }

    #[test]
    #[should_panic(expected = "gradient: out has 3 elements")]
    fn gradient_into_a_buffer_of_wrong_length_panics() {
        let (digits, _) = data();
        Model::new(SEED).gradient(&digits, &[0], &mut [0.0; 3]);
    }

    #[test]
    #[should_panic(expected = "apply: images is 0")]
    fn training_step_without_images_panics() {
        Model::new(SEED).apply(&[0.0; PARAMETERS], 0, LEARNING_RATE);
    }
}
