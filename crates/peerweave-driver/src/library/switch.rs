//! The environment variables that disable multicast objects.
//!
//! Multicast objects use the NVSwitch fabric. A fault of the fabric can disable all GPUs of a
//! machine, including GPUs of other users. So [`multicast_switch`] checks the variables of this
//! project and of NVIDIA's libraries. If one of these variables disables multicast, every creation
//! and every import of a multicast object returns an error before the driver is called.

/// Error: an environment variable disables multicast objects in this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("multicast objects are disabled by {variable}={value}")]
#[non_exhaustive]
pub struct MulticastDisabled {
    /// Name of the environment variable that disables multicast objects.
    pub variable: &'static str,
    /// Value of the environment variable.
    pub value: String,
}

/// Checks that multicast objects may be created or imported. Reads the environment at each call.
///
/// # Errors
/// [`MulticastDisabled`] if the environment has `PEERWEAVE_MULTICAST=off`, `NCCL_NVLS_ENABLE=0` or
/// `NVSHMEM_DISABLE_NVLS=1`. For safety, an unknown value of one of these variables also disables
/// multicast objects.
pub fn multicast_switch() -> Result<(), MulticastDisabled> {
    switch(&|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

fn switch(variable: &dyn Fn(&str) -> Option<String>) -> Result<(), MulticastDisabled> {
    // The values that allow multicast. NCCL reads a number (2 means "where supported"), and NVSHMEM
    // reads a Boolean.
    let allowing: [(&'static str, &[&str]); 3] = [
        ("PEERWEAVE_MULTICAST", &["", "auto", "on", "1"]),
        ("NCCL_NVLS_ENABLE", &["", "1", "2"]),
        ("NVSHMEM_DISABLE_NVLS", &["", "0", "false", "no", "off", "n", "f"]),
    ];
    for (name, values) in allowing {
        if let Some(value) = variable(name)
            && !values.contains(&value.trim().to_ascii_lowercase().as_str())
        {
            return Err(MulticastDisabled { variable: name, value });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &str) -> Result<(), MulticastDisabled> {
        switch(&|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn multicast_is_allowed_if_no_variable_disables_it() {
        assert_eq!(switch(&|_| None), Ok(()));
        assert_eq!(with("PEERWEAVE_MULTICAST", "auto"), Ok(()));
        assert_eq!(with("NCCL_NVLS_ENABLE", "2"), Ok(()));
        assert_eq!(with("NVSHMEM_DISABLE_NVLS", "0"), Ok(()));
    }

    #[test]
    fn one_variable_is_enough_to_disable_multicast() {
        for (name, value) in [
            ("PEERWEAVE_MULTICAST", "off"),
            ("PEERWEAVE_MULTICAST", "OFF"),
            ("NCCL_NVLS_ENABLE", "0"),
            ("NVSHMEM_DISABLE_NVLS", "1"),
        ] {
            let error = with(name, value).expect_err("the value disables multicast");
            assert_eq!((error.variable, error.value.as_str()), (name, value));
        }
    }

    #[test]
    fn unknown_value_of_a_multicast_variable_disables_multicast() {
        assert!(with("PEERWEAVE_MULTICAST", "perhaps").is_err());
        assert!(with("NCCL_NVLS_ENABLE", "-1").is_err());
        assert!(with("NVSHMEM_DISABLE_NVLS", "yes please").is_err());
    }
}
