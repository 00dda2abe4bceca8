//! Man pages, from the definition in `args.rs`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};

use crate::args::{Cli, Man, MountHelper, UmountHelper};
use crate::failure::{Explain, Result};

/// Writes the man pages for `stetfs man DIR`: stetfs.1, one page for each command, and the pages of
/// the two helpers.
pub(crate) fn man(args: &Man) -> Result<()> {
    fs::create_dir_all(&args.dir).during(|| args.dir.display().to_string())?;
    let mut cli = Cli::command().disable_help_flag(true);
    cli.build();
    page(&args.dir, cli.clone(), "stetfs", "1")?;
    for sub in cli.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let name = format!("stetfs-{}", sub.get_name());
        page(&args.dir, sub.clone(), &name, "1")?;
        for part in sub.get_subcommands() {
            let name = format!("{name}-{}", part.get_name());
            page(&args.dir, part.clone(), &name, "1")?;
        }
    }
    for helper in [MountHelper::command(), UmountHelper::command()] {
        let name = helper.get_name().to_owned();
        page(&args.dir, helper, &name, "8")?;
    }
    Ok(())
}

fn page(dir: &Path, command: Command, name: &str, section: &str) -> Result<()> {
    let file = dir.join(format!("{name}.{section}"));
    let mut text = Vec::new();
    render(command, name, section, &mut text)?;
    fs::write(&file, text).during(|| file.display().to_string())
}

fn render(command: Command, name: &str, section: &str, out: &mut Vec<u8>) -> io::Result<()> {
    let notes = command
        .get_after_long_help()
        .or(command.get_after_help())
        .map(ToString::to_string);
    let title = name.to_uppercase();
    let command = command.name(name.to_owned()).disable_help_subcommand(true);
    let has_subcommands = command.has_subcommands();
    let man = clap_mangen::Man::new(command)
        .title(title)
        .section(section)
        .manual("stetfs");
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if has_subcommands {
        man.render_subcommands_section(out)?;
    }
    for paragraph in notes.iter().flat_map(|n| n.split("\n\n")) {
        render_paragraph(paragraph, out)?;
    }
    Ok(())
}

/// Renders a paragraph of the text below the options: `Heading, more: rest`, and indented lines,
/// which stay as they are.
fn render_paragraph(paragraph: &str, out: &mut Vec<u8>) -> io::Result<()> {
    let (heading, body) = paragraph
        .split_once([',', ':', ';'])
        .unwrap_or((paragraph, ""));
    writeln!(out, ".SH {}", escape(&heading.to_uppercase()))?;
    let (first, lines) = body.split_once('\n').unwrap_or((body, ""));
    let text = first.trim().trim_end_matches(':');
    if !text.is_empty() {
        writeln!(out, "{}\n.PP", escape(text))?;
    }
    if lines.starts_with(' ') {
        writeln!(out, ".nf")?;
    }
    for line in lines.lines() {
        writeln!(out, "{}", escape(line))?;
    }
    if lines.starts_with(' ') {
        writeln!(out, ".fi")?;
    }
    Ok(())
}

/// Escapes text for roff(7): backslashes and dashes are spelled out, and no line begins with a dot
/// or a quote.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) {
        format!("\\&{text}")
    } else {
        text
    }
}
