#!/bin/sh
# The browser tests drive the system's Chromium. Where there is none, and it can be installed without asking anybody, install
# it. Says in one line what it did or why it did not, and never fails: the tests that need it are
# then skipped, or fail where CI is set.

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
for found in "${PLAYWRIGHT_BROWSERS_PATH:-$HOME/.cache/ms-playwright}"/chromium-*; do
    if [ -d "$found" ]; then exit 0; fi
done

without() {
    echo "vitviz: no Chromium, so the browser tests will be skipped: $1"
    exit 0
}

if [ -n "${SKIP_CHROMIUM:-}" ]; then without "SKIP_CHROMIUM is set"; fi
if ! command -v apt-get >/dev/null 2>&1; then
    without "install Chromium or Chrome yourself and run again (this system has no apt-get)"
fi
if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    without "installing it needs root: sudo apt-get install chromium"
fi

echo "vitviz: installing the system's Chromium for the browser tests"
log=$(mktemp)
apt() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 "$@" </dev/null >>"$log" 2>&1
}
# A stale package list is no reason to give up: the install says whether it is good enough.
apt update || true
if apt install --no-install-recommends chromium fonts-liberation && command -v chromium >/dev/null 2>&1; then
    rm -f "$log"
else
    reason=$(grep -m1 '^E:' "$log" || tail -n 1 "$log")
    rm -f "$log"
    without "apt-get could not install it (${reason:-no reason given})"
fi
