//! Handwritten digits for the training example: the images, the split into training and test, the
//! share of each PE.
//!
//! The model is in [`crate::digits_model`]; the communication is in the example itself.
//!
//! Invariant: the split and the batches depend on a seed, never on the number of PEs. So every PE
//! computes the same split and batches without communication. [`share`] divides each batch into
//! disjoint ranges, one for each PE.

use std::fmt;
use std::ops::Range;

/// Number of rows, and of columns, of an image.
pub const SIDE: usize = 8;

/// Number of pixels of an image.
pub const PIXELS: usize = SIDE * SIDE;

/// Number of different digits, 0 to 9.
pub const CLASSES: usize = 10;

/// Largest value of a pixel in the file: all 16 points of its 4x4 block are dark.
const DARKEST: u8 = 16;

/// Number of images for training. The other images are for the test. The number is a multiple of
/// [`BATCH`], so that all batches have the same size.
pub const TRAIN: usize = 1440;

/// Number of images of a training step, over all PEs together. Jobs of 1, 2, 3, 4, 5, 6 and 8 PEs
/// divide a batch into equal shares.
pub const BATCH: usize = 240;

/// Images, each with the digit that it shows.
#[derive(Debug, Clone)]
pub struct Digits {
    images: Vec<[f32; PIXELS]>,
    labels: Vec<u8>,
}

impl Digits {
    /// Parses the 1797 images that are part of the examples. `examples/data/README.md` names their
    /// authors and licence.
    ///
    /// # Errors
    /// [`DigitsError`] if the file in the source tree was changed and is no longer a valid table.
    pub fn embedded() -> Result<Self, DigitsError> {
        Self::parse(include_str!("../data/digits.csv"))
    }

    /// Parses a table whose lines are 64 pixels in 0..=16 and the digit in 0..=9, separated by
    /// commas.
    ///
    /// Pixels are scaled to 0.0..=1.0.
    ///
    /// # Errors
    /// [`DigitsError::Line`] if a line has another form. [`DigitsError::Empty`] if the table has no
    /// lines.
    pub fn parse(table: &str) -> Result<Self, DigitsError> {
        let mut digits = Digits { images: Vec::new(), labels: Vec::new() };
        for (index, line) in table.lines().enumerate() {
            let (image, label) = parse_line(line).map_err(|found| DigitsError::Line { line: index + 1, found })?;
            digits.images.push(image);
            digits.labels.push(label);
        }
        if digits.images.is_empty() {
            return Err(DigitsError::Empty);
        }
        Ok(digits)
    }

    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// Returns whether there are no images. A parsed table always has images.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// Returns the pixels of image `sample`, row by row, each in 0.0..=1.0.
    ///
    /// # Panics
    /// If `sample` is not below [`len`](Self::len).
    pub fn image(&self, sample: usize) -> &[f32; PIXELS] {
        &self.images[sample]
    }

    /// Returns the digit of image `sample`, in `0..CLASSES`.
    ///
    /// # Panics
    /// If `sample` is not below [`len`](Self::len).
    pub fn label(&self, sample: usize) -> usize {
        usize::from(self.labels[sample])
    }

    /// Shuffles the images by `seed` and splits them: [`TRAIN`] for training, the others for the
    /// test.
    ///
    /// # Errors
    /// [`DigitsError::TooFew`] if no image would remain for the test.
    pub fn split(&self, seed: u64) -> Result<Split, DigitsError> {
        if self.len() <= TRAIN {
            return Err(DigitsError::TooFew { images: self.len() });
        }
        let mut train: Vec<usize> = (0..self.len()).collect();
        SplitMix64::new(seed).shuffle(&mut train);
        let test = train.split_off(TRAIN);
        Ok(Split { train, test })
    }
}

/// Parses pixels and digit of one line. The error is a description of the text found instead.
fn parse_line(line: &str) -> Result<([f32; PIXELS], u8), String> {
    let mut fields = line.split(',');
    let mut next = |most: u8| {
        let field = fields.next().ok_or_else(|| String::from("fewer than 65 numbers"))?;
        match field.parse::<u8>() {
            Ok(value) if value <= most => Ok(value),
            _ => Err(format!("`{field}` instead of an integer in 0..={most}")),
        }
    };
    let mut image = [0.0; PIXELS];
    for pixel in &mut image {
        *pixel = f32::from(next(DARKEST)?) / f32::from(DARKEST);
    }
    let label = next(CLASSES as u8 - 1)?;
    match fields.next() {
        None => Ok((image, label)),
        Some(_) => Err(String::from("more than 65 numbers")),
    }
}

/// The reason why a table of digits cannot be parsed or split.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DigitsError {
    /// A line does not consist of 64 pixels and a digit.
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// Description of the text found.
        found: String,
    },
    /// The table has no lines.
    Empty,
    /// The table has too few images for a split.
    TooFew {
        /// Number of images in the table.
        images: usize,
    },
}

impl fmt::Display for DigitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { line, found } => write!(
                f,
                "digits, line {line}: found {found}, expected 64 pixels in 0..=16 and a digit in 0..=9, separated by commas"
            ),
            Self::Empty => write!(f, "digits: found no lines, expected one line per image"),
            Self::TooFew { images } => {
                write!(f, "digits: found {images} images, expected more than {TRAIN} (the number used for training)")
            }
        }
    }
}

impl std::error::Error for DigitsError {}

/// The indices of the images for training and of the images for the test. No image is in both
/// lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Indices of the [`TRAIN`] images for training.
    pub train: Vec<usize>,
    /// Indices of the images that are never used for training.
    pub test: Vec<usize>,
}

impl Split {
    /// Returns the batches of one pass over the training images, [`BATCH`] images each. The order
    /// differs from `epoch` to `epoch`.
    ///
    /// The batches are the same on every PE that passes the same `seed` and `epoch`.
    pub fn batches(&self, seed: u64, epoch: u64) -> Vec<Vec<usize>> {
        let mut order = self.train.clone();
        SplitMix64::new(seed ^ epoch.wrapping_add(1).wrapping_mul(SplitMix64::STEP)).shuffle(&mut order);
        order.chunks(BATCH).map(<[usize]>::to_vec).collect()
    }
}

/// Returns the share of `rank` in a batch of `batch` images that `ranks` ranks divide, as a range
/// of the batch.
///
/// Shares are in the order of ranks and differ by at most one image. If there are more ranks than
/// images, the shares of the last ranks are empty.
///
/// # Panics
/// If `rank` is not below `ranks`.
pub fn share(batch: usize, rank: usize, ranks: usize) -> Range<usize> {
    assert!(rank < ranks, "share: rank is {rank}, expected less than {ranks} (the number of ranks)");
    let least = batch / ranks;
    let longer = batch % ranks;
    let start = rank * least + rank.min(longer);
    start..start + least + usize::from(rank < longer)
}

/// The generator SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014). It has 64 bits of state,
/// accepts any seed, and returns the same numbers on every machine. It is not for cryptography.
#[derive(Debug, Clone)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// Increment of the state: 2^64 divided by the golden ratio, made odd.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// Creates a generator. Generators with equal seeds return equal numbers.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(Self::STEP);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a number in 0.0..1.0, uniform over the multiples of 2^-53.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Puts `items` into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            // The remainder favours small numbers by one part in 2^50, which does not matter for an
            // order of images.
            let other = (self.next_u64() % (last as u64 + 1)) as usize;
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_digits_have_the_image_counts_of_the_readme() {
        let digits = Digits::embedded().unwrap();
        assert_eq!(digits.len(), 1797);
        let mut images = [0; CLASSES];
        for sample in 0..digits.len() {
            images[digits.label(sample)] += 1;
        }
        assert_eq!(images, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        let ink: f64 = (0..digits.len()).flat_map(|sample| digits.image(sample)).map(|&pixel| f64::from(pixel) * 16.0).sum();
        assert_eq!(ink, 561_718.0);
    }

    #[test]
    fn parse_error_names_the_number_of_the_invalid_line() {
        let good = format!("{}7", "3,".repeat(64));
        let refused = |bad: &str| match Digits::parse(&format!("{good}\n{bad}\n")) {
            Err(DigitsError::Line { line: 2, found }) => found,
            other => panic!("{bad}: {other:?}"),
        };
        assert_eq!(refused(&"3,".repeat(63)), "`` instead of an integer in 0..=16");
        assert_eq!(refused("3,3"), "fewer than 65 numbers");
        assert_eq!(refused(&format!("{good},1")), "more than 65 numbers");
        assert_eq!(refused(&good.replacen('3', "17", 1)), "`17` instead of an integer in 0..=16");
        assert_eq!(refused(&good.replace('7', "10")), "`10` instead of an integer in 0..=9");
        assert_eq!(refused(&good.replacen('3', "-1", 1)), "`-1` instead of an integer in 0..=16");
        assert_eq!(Digits::parse("").unwrap_err(), DigitsError::Empty);
        assert_eq!(Digits::parse(&good).unwrap().split(1).unwrap_err(), DigitsError::TooFew { images: 1 });
    }

    #[test]
    fn train_test_split_uses_every_image_once() {
        let digits = Digits::embedded().unwrap();
        let split = digits.split(1).unwrap();
        assert_eq!((split.train.len(), split.test.len()), (TRAIN, 357));
        let mut all = [split.train.clone(), split.test.clone()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..digits.len()).collect::<Vec<_>>());
        assert_eq!(digits.split(1).unwrap(), split);
        assert_ne!(digits.split(2).unwrap(), split);
    }

    #[test]
    fn batches_of_an_epoch_use_every_training_image_once() {
        let split = Digits::embedded().unwrap().split(1).unwrap();
        let first = split.batches(1, 0);
        assert_eq!(first.len(), TRAIN / BATCH);
        assert!(first.iter().all(|batch| batch.len() == BATCH));
        let mut used = first.concat();
        used.sort_unstable();
        let mut train = split.train.clone();
        train.sort_unstable();
        assert_eq!(used, train);
        assert_eq!(split.batches(1, 0), first);
        assert_ne!(split.batches(1, 1), first);
        assert_ne!(split.batches(2, 0), first);
    }

    #[test]
    fn shares_of_a_batch_are_disjoint_and_nearly_equal_in_size() {
        for batch in [0, 1, 7, BATCH] {
            for ranks in 1..=9 {
                let shares: Vec<_> = (0..ranks).map(|rank| share(batch, rank, ranks)).collect();
                let mut end = 0;
                for share in &shares {
                    assert_eq!(share.start, end, "{batch} over {ranks}: {shares:?}");
                    assert!(share.len() == batch / ranks || share.len() == batch / ranks + 1);
                    end = share.end;
                }
                assert_eq!(end, batch);
            }
        }
    }

    #[test]
    #[should_panic(expected = "share: rank is 2")]
    fn asking_for_the_share_of_a_rank_outside_the_team_panics() {
        share(BATCH, 2, 2);
    }

    #[test]
    fn random_generator_returns_the_published_numbers() {
        // The first outputs of the reference implementation for the seed 1234567.
        let mut generator = SplitMix64::new(1_234_567);
        let found: Vec<_> = (0..5).map(|_| generator.next_u64()).collect();
        assert_eq!(
            found,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }
}
