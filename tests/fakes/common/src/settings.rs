//! Reads the settings of a fake from the environment.
//!
//! Invariant: an invalid setting ends the process and is printed, so that a test cannot pass
//! because its fault was misspelled.

use std::collections::HashMap;
use std::str::FromStr;
use std::time::Duration;

/// One rule for a function: an optional rank or PE, an optional number of the call, and an optional
/// parameter, which is a number or a delay.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The rank or PE whose calls are counted; `None` for all.
    pub place: Option<i32>,
    /// The number of the call, from 1; `None` for every call.
    pub nth: Option<u64>,
    /// The parameter: a result code, or milliseconds.
    pub number: Option<i64>,
    /// The parameter, if it ends with `ms`.
    pub delay: Option<Duration>,
}

/// The rules of each function.
pub type Rules = HashMap<String, Vec<Rule>>;

/// Parses `function[@place][:nth][=number],...`. A number that ends with `ms` is a delay. `known`
/// returns whether a function exists.
///
/// # Errors
/// The first invalid rule.
pub fn parse_rules(text: &str, known: impl Fn(&str) -> bool) -> Result<Rules, &str> {
    let mut all = Rules::new();
    for text in text.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let (left, value) = text.split_once('=').map_or((text, None), |(left, value)| (left, Some(value)));
        let (left, nth) = left.split_once(':').map_or((left, None), |(left, nth)| (left, Some(nth)));
        let (function, place) = left.split_once('@').map_or((left, None), |(left, place)| (left, Some(place)));
        let (number, delay) = match value.and_then(|value| value.strip_suffix("ms")) {
            Some(delay) => (None, Some(Duration::from_millis(parsed(delay).ok_or(text)?))),
            None => (value.map(|value| parsed(value).ok_or(text)).transpose()?, None),
        };
        if !known(function) {
            return Err(text);
        }
        let nth = nth.filter(|nth| *nth != "*").map(|nth| parsed(nth).ok_or(text)).transpose()?;
        let place = place.map(|place| parsed(place).ok_or(text)).transpose()?;
        all.entry(function.to_owned()).or_default().push(Rule { place, nth, number, delay });
    }
    Ok(all)
}

fn parsed<T: FromStr>(text: &str) -> Option<T> {
    text.trim().parse().ok()
}

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

    /// Parses the number or version in a variable; returns `None` if the variable is unset. Invalid
    /// text ends the process.
    pub fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        self.get(name).map(|text| self.parse(name, &text))
    }

    /// Parses a number or version that is part of a variable. Invalid text ends the process.
    pub fn parse<T: FromStr>(&self, name: &str, text: &str) -> T {
        parsed(text).unwrap_or_else(|| self.bad(name, text))
    }

    /// Parses the rules in a variable, as [`parse_rules`] does. Ends the process if a rule is
    /// invalid or has a delay.
    pub fn rules(&self, name: &str, known: fn(&str) -> bool) -> Rules {
        let text = self.get(name).unwrap_or_default();
        let rules = parse_rules(&text, known).unwrap_or_else(|invalid| self.bad(name, invalid));
        match rules.values().flatten().any(|rule| rule.delay.is_some()) {
            true => self.bad(name, &text),
            false => rules,
        }
    }
}
