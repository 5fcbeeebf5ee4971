# Completion of jobgen's words, for Bash: source <(jobgen completion). For zsh, before that: autoload -U bashcompinit && bashcompinit
_jobgen() {
    local word=$2 before=$3 words=''
    case $before in
        jobgen) words='render check submit status logs cancel completion --help' ;;
        --site) words=$(compgen -G 'jobscripts/sites/*.toml') ;;
        --set | --output) ;;
        *) case ${COMP_WORDS[1]}:$word in
            render:-*) words='--site --set --output --help' ;;
            submit:-*) words='--site --set --dry-run --test-only --help' ;;
            logs:-*) words='--follow --help' ;;
            *:-*) words='--help' ;;
            render:* | submit:*) words=$(compgen -G 'jobscripts/specs/*.toml') ;;
            status:* | logs:* | cancel:*) words=$(compgen -G "${OUTPUT:-runs}/*") ;;
        esac ;;
    esac
    # Files of the project are known by their names alone.
    [[ $word == */* ]] || words=$(sed --expression='s|^jobscripts/.*/\(.*\)\.toml$|\1|' <<<"$words")
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _jobgen jobgen
