//! Chooses the route of an all_reduce with residual and RMSNorm.

use peerweave_collectives::{LINE_BYTES, rms_norm};

use super::Limits;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The route of an all_reduce with RMSNorm: the algorithm, the shape of its launches, and the
/// number of rows in each launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NormRoute {
    pub(crate) algorithm: rms_norm::Algorithm,
    /// Maximum number of blocks in a launch. Each block handles whole rows.
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    /// Maximum number of rows in a launch. 0 if a row does not fit into a bank (a buffer in which a
    /// rank receives data), or if rows are too short for the algorithm.
    pub(crate) rows: u64,
}

/// Maximum sizes in bytes for the one-shot algorithm in an all_reduce with RMSNorm. The three sizes
/// are for at most 2 ranks, for 3 or 4 ranks, and for more ranks. The built-in tables have the same
/// sizes for all_reduce.
const NORM_IN_ONE_STEP: [u64; 3] = [2 * MIB, 128 * KIB, 64 * KIB];

/// Returns the route of an all_reduce with RMSNorm. The call has `rows` rows. Each row has
/// `row_lines` 16-byte lines.
pub(crate) fn norm(rows: u64, row_lines: u64, limits: &Limits) -> NormRoute {
    if limits.ranks == 1 {
        return norm_by(rms_norm::Algorithm::None, rows, row_lines, limits);
    }
    let up_to = match limits.ranks {
        ..=2 => NORM_IN_ONE_STEP[0],
        3..=4 => NORM_IN_ONE_STEP[1],
        _ => NORM_IN_ONE_STEP[2],
    };
    let bytes = rows.saturating_mul(row_lines * LINE_BYTES as u64);
    let [one, two] =
        [rms_norm::Algorithm::OneShot, rms_norm::Algorithm::TwoShot].map(|algorithm| norm_by(algorithm, rows, row_lines, limits));
    if bytes <= up_to && one.rows >= rows || two.rows == 0 { one } else { two }
}

/// Like [`norm`], but the caller chooses the algorithm.
pub(crate) fn norm_by(algorithm: rms_norm::Algorithm, rows: u64, row_lines: u64, limits: &Limits) -> NormRoute {
    const MOST_THREADS: u64 = 512;
    let too_short = algorithm == rms_norm::Algorithm::TwoShot && row_lines < rms_norm::two_shot_min_lines(limits.ranks);
    let row_bytes = rms_norm::bank_bytes(algorithm, 1, row_lines, limits.ranks);
    let rows = if too_short { 0 } else { limits.bank_bytes.checked_div(row_bytes).unwrap_or(rows) };
    // If possible, all threads of a block handle the same number of lines.
    let threads = row_lines.div_ceil(row_lines.div_ceil(MOST_THREADS).max(1)).next_multiple_of(32);
    NormRoute { algorithm, blocks: limits.max_blocks, threads: threads.clamp(32, MOST_THREADS) as u32, rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn limits(ranks: u32) -> Limits {
        Limits { ranks, bank_bytes: 32 * MIB, channel_bytes: MIB, max_blocks: 128 }
    }

    #[test]
    fn rows_of_one_rms_norm_launch_fit_into_a_staging_bank() {
        use rms_norm::Algorithm::{None, OneShot, TwoShot};
        for ranks in 1..=8 {
            let limits = limits(ranks);
            for row_lines in [1, 63, 64, 768, 769, 1 << 17] {
                for rows in [1, 138, 5000] {
                    let route = norm(rows, row_lines, &limits);
                    assert!(route.rows > 0 && (32..=512).contains(&route.threads), "{rows} of {row_lines}: {route:?}");
                    assert_eq!((route.threads % 32, route.algorithm == None), (0, ranks == 1), "{route:?}");
                    let most = rms_norm::bank_bytes(route.algorithm, route.rows.min(rows), row_lines, ranks);
                    assert!(most <= limits.bank_bytes, "{rows} of {row_lines}: {route:?}");
                }
            }
        }
        // These rows have 6144 elements of 16 bits, so each thread handles two lines.
        assert_eq!(norm(1, 768, &limits(4)), NormRoute { algorithm: OneShot, blocks: 128, threads: 384, rows: 682 });
        assert_eq!(norm(138, 768, &limits(4)).algorithm, TwoShot);
        assert_eq!(norm(138, 768, &limits(2)).algorithm, OneShot);
        assert_eq!(norm_by(TwoShot, 1, 15, &limits(4)).rows, 0);
    }
}
