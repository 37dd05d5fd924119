//! Describes NVIDIA's libraries for the report of `info`. The functions in `cuda.rs` find the
//! libraries.

use serde::Serialize;

/// A library of NVIDIA, and the properties that `info` has found.
#[derive(Debug, Serialize)]
pub(crate) struct Library {
    /// Name of the library.
    pub name: &'static str,
    /// `found`, `not found`, `not usable` or `not looked for`.
    pub state: &'static str,
    /// Version of the library, if it was found.
    pub version: Option<String>,
    /// Path of the library, if it was found.
    pub path: Option<String>,
    /// Functions that this version of the library lacks.
    pub lacks: Vec<Function>,
    /// Number of CUDA devices; `None` for libraries other than the driver.
    pub devices: Option<usize>,
    /// Paths of other copies of this library that are mapped in this process; normally empty.
    pub others: Vec<String>,
    /// Lines that explain a problem: the reason why the library is missing, not usable or not
    /// looked for, and every path that was tried. Empty if there is no problem.
    pub why: Vec<String>,
}

/// A function that the library version on this machine lacks.
#[derive(Debug, Serialize)]
pub(crate) struct Function {
    /// Name of the function.
    pub name: String,
    /// First version of the library that has the function.
    pub since: String,
}

/// Whether this process may use multicast objects, for the report of `info`.
#[derive(Debug, Serialize)]
pub(crate) struct Multicast {
    /// Whether multicast objects are allowed. False if an environment variable disables them.
    pub allowed: bool,
    /// The reason why multicast objects are not allowed. The reason names the variable that
    /// disables them. `None` if they are allowed.
    pub why: Option<String>,
}

impl Multicast {
    /// Returns the text that the report shows about multicast objects.
    pub(crate) fn text(&self) -> String {
        self.why.clone().unwrap_or_else(|| "multicast objects are allowed on devices that support multicast".to_owned())
    }
}

impl Library {
    /// Returns the description of a library that cannot be used, with the reason.
    pub(crate) fn absent(name: &'static str, state: &'static str, why: &str) -> Self {
        Self {
            name,
            state,
            version: None,
            path: None,
            lacks: Vec::new(),
            devices: None,
            others: Vec::new(),
            why: why.lines().map(|line| line.trim().to_owned()).collect(),
        }
    }

    /// Returns the lines of the report, each as a name and a value.
    pub(crate) fn lines(&self) -> Vec<(String, String)> {
        let version = self.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
        let path = self.path.as_ref().map(|path| format!(", {path}")).unwrap_or_default();
        let mut lines = vec![(self.name.to_owned(), format!("{}{version}{path}", self.state))];
        lines.extend(self.devices.map(|devices| (String::new(), format!("{devices} devices"))));
        lines.extend(
            self.others.iter().map(|other| (String::new(), format!("another copy of this library is also loaded: {other}"))),
        );
        lines.extend(self.why.iter().map(|why| (String::new(), why.clone())));
        if !self.lacks.is_empty() {
            let lacks: Vec<_> = self.lacks.iter().map(|Function { name, since }| format!("{name} ({since})")).collect();
            lines.push((String::new(), format!("lacks {}", lacks.join(", "))));
        }
        lines
    }
}
