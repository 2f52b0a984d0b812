#!/usr/bin/env python3
"""Man pages and completions, from what the programs say of themselves (--help, and so from their option tables).

usage: docs.py FOLDER_OF_PROGRAMS OUTPUT_FOLDER VERSION
Writes OUTPUT_FOLDER/man/man1/*.1.gz, man8/*.8.gz, bash/NAME, zsh/_NAME, fish/NAME.fish.
"""
import email.utils
import gzip
import os
import pathlib
import re
import subprocess
import sys
import textwrap

WHAT = {
    "ddprun": (1, "start, watch and heal data-parallel training jobs",
               "Starts one worker per device on this node, gives it torchrun's environment, watches it, restarts the job "
               "after a failure and ends with the root cause. Takes torchrun's command lines; ddprun-launch those of "
               "torch.distributed.launch."),
    "ddpctl": (1, "look into ddprun's jobs and steer them",
               "Asks the rendezvous of running jobs, stops jobs and drains nodes, reads the store, checks a host."),
    "ddprun-rendezvous": (8, "the standing rendezvous of ddprun's jobs",
                          "Agents join here and get ranks; c10d store clients get a TCPStore. Jobs do not need it: "
                          "without one, a node serves the rendezvous itself."),
}
SEE = "ddprun(1), ddpctl(1), ddprun-rendezvous(8), /usr/share/doc/ddprun"


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def sections(text):
    """[(title, [block])] of a help text; a block is (head, text): an option, or ("", words)."""
    out = [("Usage", [])]
    head, words = None, []

    def close():
        nonlocal head, words
        if head is not None or words:
            out[-1][1].append((head or "", " ".join(words)))
        head, words = None, []

    for line in text.splitlines():
        title = re.fullmatch(r"(\w[^:]*?)( \(.*\))?:", line)
        if line.startswith("Usage:"):
            out[-1][1].append(("", line[len("Usage:"):].strip()))
        elif title:
            close()
            out.append((title[1], []))
        elif re.match(r"  -", line):
            close()
            head = line.strip()
        elif line.startswith("      ") and head is not None:
            words.append(line.strip())
        elif line.strip():
            close()
            out[-1][1].append(("", line.strip()))
    close()
    return out


def man_page(name, version, parts):
    number, what, description = WHAT[name]
    lines = [f'.TH {name.upper()} {number} "" "ddprun {version}" ""', ".SH NAME", roff(f"{name} - {what}"), ".SH SYNOPSIS"]
    for _, words in parts[0][1]:
        lines += [".B", roff(words), ".br"]
    lines += [".SH DESCRIPTION", roff(description)]
    for title, blocks in parts[1:]:
        lines.append(f".SH {title.upper()}")
        for head, words in blocks:
            if head:
                lines += [".TP", f".B {roff(head)}", roff(words)]
            else:  # examples, tables: as they stand
                lines += [".nf", roff(words), ".fi"]
    lines += [".SH SEE ALSO", roff(SEE), ""]
    return "\n".join(lines)


def options_of(parts):
    """[(long, short, value name, words)]"""
    out = []
    for _, blocks in parts:
        for head, words in blocks:
            match = re.match(r"(?:-(\w), )?--([\w-]+)(?: (\S.*))?$", head)
            if match:
                out.append((match[2], match[1] or "", match[3] or "", words.split(";")[0].split(" [")[0]))
    return out


def choices(value):
    return value.split("|") if re.fullmatch(r"[\w-]+(\|[\w-]+)+", value) else []


def bash(name, options, program_follows):
    words = " ".join(f"--{long}" for long, _, _, _ in options)
    function = "_" + name.replace("-", "_")
    cases = "".join(f"    --{long}) mapfile -t COMPREPLY < <(compgen -W '{' '.join(choices(value))}' -- \"$word\"); return ;;\n"
                    for long, _, value, _ in options if choices(value))
    # What stands behind the script belongs to the script.
    return f"""{function}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  if [ "$before" = = ] && [ "$COMP_CWORD" -ge 2 ]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  case $before in
{cases}  esac
  if [[ $word == -* ]]; then mapfile -t COMPREPLY < <(compgen -W '{words}' -- "$word"); return; fi
  mapfile -t COMPREPLY < <(compgen -{'fc' if program_follows else 'f'} -- "$word")
}}
complete -o default -F {function} {name}
"""


def zsh(name, options, program_follows):
    def row(long, short, value, words):
        words = re.sub(r"([\[\]:\\'])", r"\\\1", words).replace("\\'", "'\\''")
        value_part = f":{value.replace(':', ' ')}:({' '.join(choices(value))})" if choices(value) else \
            f":{value.replace(':', ' ')}:_files" if value else ""
        return f"  '--{long}{'=' if value else ''}[{words}]{value_part}'"
    rows = " \\\n".join(row(*option) for option in options)
    return f"#compdef {name}\n_arguments -s \\\n{rows} \\\n  '*::program:_files'\n"


def fish(name, options, program_follows):
    out = []
    for long, short, value, words in options:
        words = words.replace("\\", "\\\\").replace("'", "\\'")
        line = f"complete -c {name} -l {long}" + (f" -s {short}" if short else "") + (" -r" if value else "")
        line += f" -f -a '{' '.join(choices(value))}'" if choices(value) else ""
        out.append(f"{line} -d '{words}'")
    return "\n".join(out) + "\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    else:
        path.write_text(text)


def debian_changelog(path, version):
    """What is new in this version, in Debian's form. The day is that of the source."""
    text = path.read_text()
    newest = re.search(r"^## .*?$(.*?)(?=^## |\Z)", text, re.M | re.S)[1]
    points = [" ".join(point.split()) for point in re.findall(r"^- (.*?)(?=^- |\Z)", newest, re.M | re.S)] or ["New version."]
    when = int(os.environ.get("SOURCE_DATE_EPOCH", path.stat().st_mtime))
    lines = [f"ddprun ({version}) unstable; urgency=medium", ""]
    for point in points:
        lines += textwrap.wrap(point, 76, initial_indent="  * ", subsequent_indent="    ")
    lines += ["", f" -- ddprun maintainers <maintainers@ddprun.example>  {email.utils.formatdate(when)}", ""]
    return "\n".join(lines)


def help_of(program):
    text = subprocess.run([program, "--help-all"], capture_output=True, text=True, timeout=60)
    if text.returncode != 0:  # a program with few options has no --help-all
        text = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60, check=True)
    return text.stdout


def main(folder, out, version):
    out = pathlib.Path(out)
    for name in [*WHAT, "ddprun-launch"]:
        parts = sections(help_of(os.path.join(folder, name)))
        options = options_of(parts)
        if len(options) < 2:
            sys.exit(f"docs.py: no options found in the help of {name}: has its form changed?")
        if name in WHAT:
            number = WHAT[name][0]
            write(out / f"man/man{number}/{name}.{number}.gz", man_page(name, version, parts))
        program_follows = name in ("ddprun", "ddprun-launch")
        write(out / "bash" / name, bash(name, options, program_follows))
        write(out / "zsh" / f"_{name}", zsh(name, options, program_follows))
        write(out / "fish" / f"{name}.fish", fish(name, options, program_follows))
    write(out / "man/man1/ddprun-launch.1.gz", ".so man1/ddprun.1\n")
    write(out / "changelog.gz", debian_changelog(pathlib.Path(__file__).resolve().parents[2] / "CHANGELOG.md", version))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
