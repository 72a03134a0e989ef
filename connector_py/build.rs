//! What the binary says of how it was built.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=KVRING_COMMIT");
    for name in ["TARGET", "PROFILE"] {
        let value = env::var(name).unwrap_or_else(|_| "unknown".into());
        println!("cargo::rustc-env=KVRING_{name}={value}");
    }
    println!("cargo::rustc-env=KVRING_COMPILER={}", compiler().unwrap_or_else(|| "unknown".into()));
}

fn compiler() -> Option<String> {
    let output = Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
