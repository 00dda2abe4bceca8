//! With the feature `libfuzzer` the program that cargo-fuzz drives; without it one that replays the
//! inputs in the files that it is given.
#![cfg_attr(feature = "libfuzzer", no_main)]
#![cfg_attr(not(feature = "libfuzzer"), forbid(unsafe_code))]

#[cfg(feature = "libfuzzer")]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    use std::sync::LazyLock;
    static TARGET: LazyLock<&stetfs_fuzz::Target> = LazyLock::new(stetfs_fuzz::chosen);
    TARGET.run(data);
});

#[cfg(not(feature = "libfuzzer"))]
fn main() -> std::io::Result<()> {
    let files: Vec<_> = std::env::args_os().skip(1).collect();
    if files.is_empty() {
        // What `scripts/fuzz.sh` runs.
        for target in stetfs_fuzz::TARGETS.iter() {
            println!("{}", target.name);
        }
        return Ok(());
    }
    let target = stetfs_fuzz::chosen();
    for file in files {
        println!("{}: {}", target.name, file.display());
        target.run(&std::fs::read(&file)?);
    }
    Ok(())
}
