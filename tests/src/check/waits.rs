//! Checks waits and tests on words of each type, with every comparison and condition.

use peerweave::{Compare, Rank, Team, WaitElement, World};

/// Returns the word with the low bits of `number`, for types of every width and signedness.
fn of<T: WaitElement>(number: i64) -> T {
    T::from_word(number as u64)
}

/// Returns numbers at the ends of the type's range and where its sign bit changes, in ascending
/// order.
fn ordered<T: WaitElement>() -> Vec<T> {
    let (bits, is_signed) = (8 * size_of::<T>(), Compare::sign_bit(T::DTYPE) != 0);
    let (least, greatest) = if is_signed { (-1i64 << (bits - 1), (1i64 << (bits - 1)).wrapping_sub(1)) } else { (0, -1) };
    let middle = if is_signed { [-2, -1, 0, 1] } else { [1, 2, (1i64 << (bits - 1)).wrapping_sub(1), 1i64 << (bits - 1)] };
    let ends = [of(least), of(greatest)];
    [ends[0]].into_iter().chain(middle.map(of)).chain([ends[1]]).collect()
}

/// Checks the waits and tests of one type. Every rank puts the numbers of `ordered` to the words
/// of its right neighbor in the team.
///
/// # Panics
/// If a result is wrong.
pub fn of_a_type<T: WaitElement>(world: &World, team: &Team) {
    let stream = world.stream().unwrap();
    let n = team.size();
    let right = Rank::new(((team.my_rank().index() + 1) % n) as u32);
    let numbers = ordered::<T>();
    let words = world.alloc_zeroed::<T>(numbers.len()).unwrap();
    let zero = of::<T>(0);

    // All words are 0 before the puts.
    assert!(team.test_all(&words, None, Compare::Eq, zero).unwrap());
    assert_eq!(team.test_any(&words, None, Compare::Ne, zero).unwrap(), None);
    assert_eq!(team.test_some(&words, None, Compare::Ne, zero).unwrap(), [0usize; 0]);
    let all_excluded = vec![true; numbers.len()];
    assert_eq!(team.wait_until_any_blocking(&words, Some(&all_excluded), Compare::Ne, zero).unwrap(), None);
    team.wait_until_all_vector_blocking(&words, Some(&all_excluded), Compare::Ne, &numbers).unwrap();
    team.barrier_blocking().unwrap();

    // These waits are enqueued before the words arrive.
    let vector = team.wait_until_all_vector(&stream, &words, None, Compare::Eq, &numbers).unwrap();
    let last = team.wait_until(&stream, (&words, numbers.len() - 1), Compare::Eq, numbers[numbers.len() - 1]).unwrap();
    team.barrier_blocking().unwrap();
    for (index, number) in numbers.iter().enumerate() {
        team.p_blocking(&words, index, *number, right).unwrap();
    }
    vector.wait().unwrap();
    assert_eq!(last.wait().unwrap(), numbers[numbers.len() - 1]);

    // Each comparison with each number follows the order of the type.
    for (pivot, value) in numbers.iter().enumerate() {
        for compare in Compare::ALL {
            let holds = |index: usize| compare.holds(index as u64, pivot as u64);
            let expected: Vec<usize> = (0..numbers.len()).filter(|&index| holds(index)).collect();
            let case = format!("{compare} {value:?} of {:?}", T::DTYPE);
            assert_eq!(team.test_some(&words, None, compare, *value).unwrap(), expected, "{case}");
            let any = team.test_any(&words, None, compare, *value).unwrap();
            assert_eq!(any.is_some(), !expected.is_empty(), "{case}");
            assert!(
                any.is_none_or(|index| expected.contains(&index)),
                "{case}: test_any returned {any:?}, expected one of {expected:?}"
            );
            let excluded: Vec<bool> = (0..numbers.len()).map(|index| !holds(index)).collect();
            assert!(
                team.test_all(&words, Some(&excluded), compare, *value).unwrap(),
                "{case}: test_all failed for the words that satisfy the comparison"
            );
            for index in 0..numbers.len() {
                assert_eq!(team.test((&words, index), compare, *value).unwrap(), holds(index), "{case}, word {index}");
            }
        }
    }
    team.barrier_blocking().unwrap();

    // Each word is compared with a value of its own.
    let first = [zero; 1];
    let (some, any) = (numbers.len() - 2, numbers.len() - 1);
    let mut values = numbers.clone();
    values[any] = numbers[0];
    assert!(!team.test_all_vector(&words, None, Compare::Eq, &values).unwrap());
    assert_eq!(team.test_any_vector(&words, None, Compare::Ne, &values).unwrap(), Some(any));
    assert_eq!(team.test_some_vector(&words, None, Compare::Eq, &values).unwrap(), (0..=some).collect::<Vec<_>>());
    assert_eq!(team.wait_until_any_vector_blocking(&words, None, Compare::Gt, &values).unwrap(), Some(any));
    assert_eq!(team.wait_until_some_vector_blocking(&words, None, Compare::Gt, &values).unwrap(), [any]);
    let ticket = team.wait_until_some_vector(&stream, &words, None, Compare::Gt, &values).unwrap();
    assert_eq!(ticket.wait().unwrap(), [any]);
    let ticket = team.wait_until_any_vector(&stream, &words, None, Compare::Ne, &values).unwrap();
    assert_eq!(ticket.wait().unwrap(), Some(any));
    // The range starts at an odd multiple of the word's size.
    let part = words.slice(1..2).unwrap();
    assert_eq!(team.wait_until_blocking((&part, 0), Compare::Eq, numbers[1]).unwrap(), numbers[1]);
    assert!(!team.test_all_vector(&part, None, Compare::Eq, &first).unwrap());
    team.barrier_blocking().unwrap();
    words.release().unwrap();
}

/// Checks waits for words of every type.
///
/// # Panics
/// If a result is wrong.
pub fn of_every_type(world: &World, team: &Team) {
    of_a_type::<i16>(world, team);
    of_a_type::<u16>(world, team);
    of_a_type::<i32>(world, team);
    of_a_type::<u32>(world, team);
    of_a_type::<i64>(world, team);
    of_a_type::<u64>(world, team);
    of_a_type::<isize>(world, team);
    of_a_type::<usize>(world, team);
}

/// Checks that repeated waits and tests for any of several words return every word, although all
/// words satisfy the condition all the time.
///
/// # Panics
/// If a word is not returned.
pub fn any_is_fair(world: &World, team: &Team) {
    let stream = world.stream().unwrap();
    for count in [2, 3, 8, 70] {
        let words = world.alloc_zeroed::<i32>(count).unwrap();
        let others = world.alloc_zeroed::<u64>(2).unwrap();
        words.fill(-1).unwrap();
        let mut is_excluded = vec![false; count];
        is_excluded[count - 1] = true;
        let calls: [(&str, &dyn Fn() -> usize); 3] = [
            ("test_any", &|| team.test_any(&words, None, Compare::Lt, 0).unwrap().unwrap()),
            ("wait_until_any_blocking", &|| {
                // A test of other words in between does not change this.
                team.test_any(&others, None, Compare::Eq, 0).unwrap().unwrap();
                team.wait_until_any_blocking(&words, None, Compare::Lt, 0).unwrap().unwrap()
            }),
            ("wait_until_any", &|| {
                let waited = team.wait_until_any(&stream, &words, Some(&is_excluded), Compare::Lt, 0).unwrap();
                waited.wait().unwrap().unwrap()
            }),
        ];
        for (name, call) in calls {
            let due = if name == "wait_until_any" { count - 1 } else { count };
            let mut found = vec![0u32; count];
            (0..20 * count).for_each(|_| found[call()] += 1);
            assert!(
                found[..due].iter().all(|&times| times > 0),
                "{name} of {count} words returned each word this often: {found:?}, expected at least once"
            );
            assert!(found[due..].iter().all(|&times| times == 0), "{name} returned an excluded word: {found:?}");
        }
        words.release().unwrap();
        others.release().unwrap();
    }
}
