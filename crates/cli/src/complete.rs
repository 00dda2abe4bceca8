//! `stetfs completions`: what clap makes of the definition in `args.rs`, plus what clap does not
//! know (names of schemes, models, experiments and mount options), less what is hidden.

use std::collections::BTreeSet;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use stetfs_schemes::SCHEMES;

use crate::args::{Cli, Completions};
use crate::beside;
use crate::failure::Result;

/// Mount options that a user may want to type; the schemes' own come from the registry.
const MOUNT_OPTIONS: &str = "\
    ro rw data=journal data=ordered data=writeback atomic=all atomic=marked atomic=none commit= \
    dirty_expire= max_batch_time= min_batch_time= noauto_da_alloc nodelalloc memory= \
    errors=remount-ro errors=continue errors=panic noatime relatime strictatime nodiratime discard \
    direct nodirect dax durability=power durability=process nvm= nvm-new noload sb= resuid= \
    resgid= minixdf max_dir_size_kb= grpid loop noloop transport=auto transport=uring \
    transport=dev threads= readahead= nowriteback allow_other noallow_other suid nosuid dev nodev \
    noexec nosymfollow sync dirsync nobarrier noacl nouser_xattr";

pub(crate) fn run(args: &Completions) -> Result<()> {
    let mut command = with_names(Cli::command());
    let hidden = hidden(&command);
    let mut out = Vec::new();
    clap_complete::generate(args.shell, &mut command, "stetfs", &mut out);
    let script = String::from_utf8_lossy(&out);
    let script = without(&script, args.shell, &hidden);
    crate::output::write_all(with_lists(script, args.shell).as_bytes())
}

/// Returns the words that `-o` takes.
fn mount_options() -> Vec<String> {
    let own = SCHEMES.iter().flat_map(|s| s.about.options);
    let own: BTreeSet<String> = own
        .map(|option| match option.syntax {
            "on|off" => option.name.to_owned(),
            _ => format!("{}=", option.name),
        })
        .collect();
    let schemes = SCHEMES.iter().map(|s| format!("scheme={}", s.about.name));
    let words = MOUNT_OPTIONS.split_whitespace().map(str::to_owned);
    words.chain(schemes).chain(own).collect()
}

/// Returns the definition with the values that arguments can have.
fn with_names(command: Command) -> Command {
    let schemes: Vec<&str> = SCHEMES.iter().map(|s| s.about.name).collect();
    let among =
        |names: Vec<String>| move |arg: Arg| arg.value_parser(PossibleValuesParser::new(names));
    let is_scheme = among(schemes.iter().map(|&name| name.to_owned()).collect());
    let command = command
        .mut_subcommand("mkfs", |mkfs| mkfs.mut_arg("scheme", is_scheme))
        .mut_subcommand("mount", |mount| {
            mount.mut_arg("options", among(mount_options()))
        })
        .mut_subcommand("lab", |lab| match beside::ids("stetfs-lab") {
            experiments if experiments.is_empty() => lab,
            experiments => lab.mut_arg("args", among(experiments)),
        });
    #[cfg(feature = "crash")]
    let command = command.mut_subcommand("crash", |crash| {
        let is_scheme = among(schemes.iter().map(|&name| name.to_owned()).collect());
        let models = stetfs_powercut::model::MODELS.map(|model| model.name);
        let kernels = stetfs_powercut::kernel::Kernel::EXAMPLES;
        let models = models.into_iter().chain(schemes).chain(kernels);
        let models = models.map(str::to_owned);
        crash
            .mut_arg("scheme", is_scheme)
            .mut_arg("model", among(models.collect()))
    });
    command
}

/// Returns the long names of arguments that are not for users.
fn hidden(command: &Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter(|arg| arg.is_hide_set());
    let own = own.filter_map(Arg::get_long).map(str::to_owned);
    own.chain(command.get_subcommands().flat_map(hidden))
        .collect()
}

/// Returns the script without the hidden arguments; clap offers them all the same.
fn without(script: &str, shell: Shell, hidden: &BTreeSet<String>) -> String {
    let names_hidden = |line: &str| {
        hidden.iter().any(|long| match shell {
            Shell::Fish => {
                line.contains(&format!(" -l {long} ")) || line.ends_with(&format!(" -l {long}"))
            }
            _ => line.trim_start().starts_with(&format!("'--{long}")),
        })
    };
    let mut kept = String::with_capacity(script.len());
    for line in script.lines().filter(|line| !names_hidden(line)) {
        match line.trim_start().strip_prefix("opts=\"") {
            Some(words) => {
                let words = words.trim_end_matches('"').split(' ');
                let shown = |word: &&str| !hidden.iter().any(|long| *word == format!("--{long}"));
                let words: Vec<&str> = words.filter(shown).collect();
                kept.push_str(&format!("            opts=\"{}\"", words.join(" ")));
            }
            None => kept.push_str(line),
        }
        kept.push('\n');
    }
    kept
}

/// Completes the last word of mount options, which come in lists with commas.
fn with_lists(script: String, shell: Shell) -> String {
    let words = mount_options().join(" ");
    match shell {
        Shell::Bash => script.replace(
            &format!("compgen -W \"{words}\" -- \"${{cur}}\""),
            &format!("compgen -P \"${{cur%\"${{cur##*,}}\"}}\" -W \"{words}\" -- \"${{cur##*,}}\""),
        ),
        Shell::Zsh => script.replace(
            &format!(":OPTIONS:({words})"),
            &format!(":OPTIONS:{{_values -s , option {words}}}"),
        ),
        _ => script,
    }
}

#[cfg(test)]
mod tests {
    use stetfs::OptionError;
    use stetfs_fuse::Options;

    use super::*;

    #[test]
    fn what_is_offered_is_taken() {
        for word in mount_options() {
            match Options::parse(&word) {
                Ok(_) => {}
                Err(OptionError::NoValue(_) | OptionError::Value { .. }) if word.ends_with('=') => {
                }
                Err(e) => panic!("{word}: {e}"),
            }
        }
    }
}
