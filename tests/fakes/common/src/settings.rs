//! Reads the settings of a fake from the environment.
//!
//! Invariant: an invalid setting ends the process and is printed, so that a test cannot pass
//! because its fault was misspelled.

use std::collections::HashMap;
use std::str::FromStr;

/// One rule for a function: an optional rank or PE, an optional number of the call, and an optional
/// parameter.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The rank or PE whose calls are counted; `None` for all.
    pub place: Option<i32>,
    /// The number of the call, from 1; `None` for every call.
    pub nth: Option<u64>,
    /// The parameter: a result code, or milliseconds.
    pub number: Option<i64>,
}

/// The rules of each function.
pub type Rules = HashMap<String, Vec<Rule>>;

/// The variables of one fake.
#[derive(Clone, Copy, Debug)]
pub struct Variables {
    /// Name of the fake, such as `fake nccl`.
    pub fake: &'static str,
    /// Prefix of the fake's variables.
    pub prefix: &'static str,
}

impl Variables {
    /// Returns the value of a variable; an empty value counts as unset.
    pub fn get(&self, name: &str) -> Option<String> {
        std::env::var(format!("{}{name}", self.prefix)).ok().filter(|text| !text.is_empty())
    }

    /// Ends the process because of an invalid value.
    pub fn bad(&self, name: &str, text: &str) -> ! {
        eprintln!("{}: {}{name}={text} is invalid", self.fake, self.prefix);
        std::process::abort();
    }

    /// Returns whether a switch is `1`; unset and `0` mean off. Any other value ends the process.
    pub fn flag(&self, name: &str) -> bool {
        match self.get(name).as_deref() {
            None | Some("0") => false,
            Some("1") => true,
            Some(text) => self.bad(name, text),
        }
    }

    /// Parses the number or version in the text of a variable. Invalid text ends the process.
    pub fn number<T: FromStr>(&self, name: &str, text: &str) -> T {
        text.trim().parse().unwrap_or_else(|_| self.bad(name, text))
    }

    /// Parses `function[@place][:nth][=number],...`; `known` returns whether a function exists.
    pub fn rules(&self, name: &str, known: fn(&str) -> bool) -> Rules {
        let mut all = Rules::new();
        for text in self.get(name).unwrap_or_default().split(',').map(str::trim).filter(|text| !text.is_empty()) {
            let (left, value) = text.split_once('=').map_or((text, None), |(left, value)| (left, Some(value)));
            let (left, nth) = left.split_once(':').map_or((left, None), |(left, nth)| (left, Some(nth)));
            let (function, place) = left.split_once('@').map_or((left, None), |(left, place)| (left, Some(place)));
            if !known(function) {
                self.bad(name, text);
            }
            let nth = nth.filter(|nth| *nth != "*").map(|nth| self.number(name, nth));
            let place = place.map(|place| self.number(name, place));
            let number = value.map(|value| self.number(name, value));
            all.entry(function.to_owned()).or_default().push(Rule { place, nth, number });
        }
        all
    }
}
