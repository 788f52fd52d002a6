"""`lockstep completion`: print a script that completes command lines in a shell."""

from collections.abc import Sequence

from lockstep.cli.arguments import Arguments
from lockstep.processes.exit_codes import DONE

__all__ = ["main"]

# Where there are no candidates, the shells complete names of files.
_BASH = """_lockstep() {
    mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" candidates "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null | cut -f 1)
}
complete -o default -F _lockstep lockstep"""
_ZSH = """#compdef lockstep
_lockstep() {
    local -a candidates
    candidates=(${(f)"$("${words[1]}" candidates "${(@)words[2,CURRENT]}" 2> /dev/null)"})
    candidates=("${(@)candidates//:/\\\\:}")
    candidates=("${(@)candidates/$'\\t'/:}")
    if (( $#candidates )); then _describe lockstep candidates; else _files; fi
}
if [ "$funcstack[1]" = _lockstep ]; then _lockstep "$@"; else compdef _lockstep lockstep; fi"""
_FISH = """function __lockstep_candidates
    set -l words (commandline -opc)
    set -l candidates ($words[1] candidates $words[2..-1] (commandline -ct) 2> /dev/null)
    if set -q candidates[1]
        printf '%s\\n' $candidates
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c lockstep -f -a '(__lockstep_candidates)'"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def main(argv: Sequence[str]) -> int:
    """Print the script. Return the exit code."""
    parser = Arguments(
        "completion",
        "Prints a script that completes commands, presets, runs, flags and their values with the Tab key.",
    )
    parser.epilog = 'For bash, add this line to ~/.bashrc: eval "$(lockstep completion bash)"'
    parser.add_argument("shell", choices=list(_SCRIPTS), metavar="SHELL", help=f"the shell: {', '.join(_SCRIPTS)}")
    print(_SCRIPTS[parser.read(argv).shell])
    return DONE
