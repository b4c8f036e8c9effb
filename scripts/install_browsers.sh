#!/bin/sh
# The browser tests drive the system's browsers: sh install_browsers.sh chromium firefox webkit screen. This script
# installs what is missing if no password is needed, and prints one line with the result. It never fails: without a
# browser, its tests are skipped, or fail if CI is set.

without() {
    echo "vitviz: no $1, so the tests in it will be skipped or fail: $2"
}

is_here() {
    for name in $2; do
        if command -v "$name" >/dev/null 2>&1; then return 0; fi
    done
    [ "$1" = chromium ] || return 1
    for downloaded in "${PLAYWRIGHT_BROWSERS_PATH:-$HOME/.cache/ms-playwright}"/chromium-*; do
        if [ -d "$downloaded" ]; then return 0; fi
    done
    return 1
}

apt() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 "$@" </dev/null >>"$log" 2>&1
}

# $1: the browser; $2: its commands; $3: packages that contain it
install() {
    if is_here "$1" "$2"; then return; fi
    if [ -n "${SKIP_CHROMIUM:-}" ] && [ "$1" = chromium ]; then without "$1" "SKIP_CHROMIUM is set"; return; fi
    if ! command -v apt-get >/dev/null 2>&1; then
        without "$1" "install it yourself and run again (this system has no apt-get)"
        return
    fi
    if [ "$(id -u)" = 0 ]; then
        as_root=""
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        as_root="sudo -n"
    else
        without "$1" "installing it needs root: sudo apt-get install $3"
        return
    fi
    echo "vitviz: installing the system's $1 for the browser tests"
    log=$(mktemp)
    # Ignore failed updates of the package list, because the install may still succeed. Debian has firefox-esr,
    # other systems firefox.
    apt update || true
    for packages in $3; do
        if apt install --no-install-recommends "$packages" fonts-liberation && is_here "$1" "$2"; then break; fi
    done
    if ! is_here "$1" "$2"; then
        reason=$(grep -m1 '^E:' "$log" || tail -n 1 "$log")
        without "$1" "apt-get could not install it (${reason:-no reason given})"
    fi
    rm -f "$log"
}

for browser in "$@"; do
    case $browser in
        chromium) install chromium "chromium chromium-browser google-chrome google-chrome-stable" "chromium" ;;
        screen) install "virtual screen" "Xvfb" "xvfb" ;;
        firefox) install firefox "firefox-esr firefox" "firefox-esr firefox" ;;
        webkit) install webkit "WebKitWebDriver" "webkit2gtk-driver" ;;
        *) echo "vitviz: expected chromium, firefox, webkit or screen, got $browser" ;;
    esac
done
exit 0
