# shellcheck shell=bash
# setup.sh - sourced by scripts/demo and scripts/test: finds what the build needs and installs what is missing.
# Debian and Ubuntu are served through apt; elsewhere the missing things are named. Installs nothing that is there.
# SPDX-License-Identifier: MIT

say() { printf '== %s\n' "$*"; }

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 2
}

# True when a C program with that header and that library compiles and links.
bp_has_library() { # header library
    printf '#include <stddef.h>\n#include <stdint.h>\n#include <stdarg.h>\n%s\n#include <%s>\nint main(void){return 0;}\n' \
        '#define PCRE2_CODE_UNIT_WIDTH 8' "$1" | cc -x c - -l"$2" -o /dev/null 2>/dev/null
}

# Prints the Debian packages that are missing, one a line.
bp_missing() {
    local pair
    for pair in cmake:cmake ninja:ninja-build c++:g++ pkg-config:pkg-config python3:python3 objdump:binutils gcov:gcc; do
        command -v "${pair%%:*}" >/dev/null || echo "${pair#*:}"
    done
    if ! command -v cc >/dev/null; then
        # Without a compiler nothing can be tried; apt leaves alone what is installed already.
        printf '%s\n' gcc libc6-dev libinih-dev libxxhash-dev libjansson-dev check libsubunit-dev libpcre2-dev
        return
    fi
    if ! bp_has_library stdio.h m; then
        printf '%s\n' libc6-dev libinih-dev libxxhash-dev libjansson-dev check libsubunit-dev libpcre2-dev
        return
    fi
    bp_has_library ini.h inih || echo libinih-dev
    bp_has_library xxhash.h xxhash || echo libxxhash-dev
    bp_has_library jansson.h jansson || echo libjansson-dev
    bp_has_library check.h check || echo check
    bp_has_library subunit/child.h subunit || echo libsubunit-dev
    bp_has_library pcre2.h pcre2-8 || echo libpcre2-dev
}

bp_apt() { # apt-get arguments
    local root=()
    [ "$(id -u)" -eq 0 ] || root=(sudo)
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@"
}

bp_setup() {
    local missing
    missing=$(bp_missing | tr '\n' ' ')
    if [ -z "$missing" ]; then
        say "all build packages are present"
    else
        command -v apt-get >/dev/null ||
            die "there is no apt-get here, so please install what these Debian packages hold, then run this again: $missing"
        [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null ||
            die "installing needs root and there is no sudo, so please run as root: apt-get install -y $missing"
        say "installing with apt: $missing"
        bp_apt update ||
            die "apt-get update failed, so please run as root: apt-get update && apt-get install -y $missing"
        # shellcheck disable=SC2086  # a list of names, split on purpose
        bp_apt install -y --no-install-recommends $missing ||
            die "apt-get install failed, so please run as root: apt-get install -y $missing"
        missing=$(bp_missing | tr '\n' ' ')
        [ -z "$missing" ] || die "still missing after the installation: $missing"
    fi
    local version
    version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
    # shellcheck disable=SC2086
    set -- $version
    if [ "$1" -lt 3 ] || { [ "$1" -eq 3 ] && [ "$2" -lt 25 ]; }; then
        die "cmake $1.$2 is too old: 3.25 or newer is needed (Debian 12 has it)"
    fi
}

# A browser for the tests of HTML reports, unless BP_BROWSER names one. They are skipped without one, so that it cannot be
# had is no error.
# Debian 12, 2 cores: 20 s, 122 MB to download.
bp_setup_browser() {
    local name
    for name in ${BP_BROWSER:+"$BP_BROWSER"} chromium chromium-browser google-chrome google-chrome-stable chrome; do
        if command -v "$name" >/dev/null; then
            say "a browser is present: $name"
            return
        fi
    done
    if command -v apt-get >/dev/null && { [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null; } &&
        say "installing with apt: chromium" &&
        bp_apt update && bp_apt install -y --no-install-recommends chromium; then
        return
    fi
    say "no browser could be installed: the tests that need one will be skipped"
}

# Configures and builds one preset; the log is shown only when something fails.
bp_build() { # preset [target...]
    local preset=$1 targets=()
    shift
    if [ $# -gt 0 ]; then targets=(--target "$@"); fi
    say "configuring build/$preset"
    mkdir -p "build/$preset"
    cmake --preset "$preset" >"build/$preset/configure.log" 2>&1 || {
        cat "build/$preset/configure.log" >&2
        die "configuring preset $preset failed (the log is above)"
    }
    say "building build/$preset"
    cmake --build --preset "$preset" "${targets[@]}" || die "building preset $preset failed (the errors are above)"
}
