#!/bin/sh
# Installs Rivulet from the folder of a release, or from a URL:
#
#   sh install.sh [--from FOLDER|URL] [--unsigned]
#
# Without --from: the folder of this script, or RELEASES below if no release lies there. The file SHA256SUMS has to be signed by one of the
# root keys below (Ed25519, image/signed; openssl 3 checks it), and every file that is used
# has to have its hash there. Nothing is run or installed before. --unsigned leaves the
# signature out, for a release of your own. Debian takes the .deb, systems with RPM the .rpm,
# others the binary, which installs itself.
set -eu

# Base64, separated by commas; the lowest generation of a signing key that is taken; and the place where releases are
# published. Filled in by make release.
ROOT_KEYS=
MIN_GENERATION=
RELEASES=

from=$(dirname "$0")
# Read from a pipe, $0 is the shell, and the current folder is nobody's release.
[ -z "$RELEASES" ] || { [ -f "$0" ] && [ -f "$from/SHA256SUMS" ]; } || from=$RELEASES
unsigned=
fail() { echo "install.sh: $*" >&2; exit 1; }
while [ $# -gt 0 ]; do
	case "$1" in
	--from) [ $# -gt 1 ] || fail "--from needs a folder or a URL"; from=$2; shift ;;
	--unsigned) unsigned=1 ;;
	*) fail "$1 is not known; sh install.sh [--from FOLDER|URL] [--unsigned]" ;;
	esac
	shift
done
[ "$(id -u)" = 0 ] || [ -n "${RIVULET_DRY_RUN:-}" ] || fail "it needs root; use: sudo sh install.sh"

# The system decides, not the kernel: one of 32 bits may have a kernel of 64.
with=binary machine=$(uname -m)
if command -v dpkg >/dev/null; then
	with=dpkg machine=$(dpkg --print-architecture)
elif command -v rpm >/dev/null; then
	with=rpm machine=$(rpm --eval %_arch)
fi
case "$machine" in
x86_64 | amd64) arch=amd64 deb=amd64 rpm=x86_64 ;;
aarch64 | arm64) arch=arm64 deb=arm64 rpm=aarch64 ;;
armv7* | armv8l | armhf | arm) arch=armv7 deb=armhf rpm=armv7hl ;;
*) arch= ;;
esac
# armhf of Raspberry Pi OS may be an ARMv6, as the first Raspberry Pi and the Zero.
case "$(uname -m)" in armv[456]*) arch= ;; esac
[ -n "$arch" ] || fail "there is no release for $machine on $(uname -m); there are amd64, arm64, armv7"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# get NAME: into $work, at most 1 GB.
get() {
	case "$from" in
	http://* | https://*)
		if command -v curl >/dev/null; then
			curl -fsSL --max-filesize 1000000000 -o "$work/$1" "$from/$1" || fail "cannot get $from/$1; look at the address and the network"
		elif command -v wget >/dev/null; then
			wget -q -O "$work/$1" "$from/$1" || fail "cannot get $from/$1; look at the address and the network"
		else
			fail "neither curl nor wget is here; install one, or copy the release into a folder and give it with --from"
		fi
		;;
	*) cp "$from/$1" "$work/$1" || fail "$from has no $1; give the folder of the release with --from" ;;
	esac
}

# text KEY JSON: the value of a key of an object that has no objects in it.
text() { printf '%s' "$2" | sed -n "s/.*\"$1\":\"*\([A-Za-z0-9+\/=]*\).*/\1/p"; }

# big N: 8 bytes, the most significant first.
big() {
	shift_by=56
	while [ $shift_by -ge 0 ]; do
		printf "\\$(printf %03o $(($1 >> shift_by & 255)))"
		shift_by=$((shift_by - 8))
	done
}

# checked KEY MESSAGE SIGNATURE: base64, file, base64.
checked() {
	{ printf '\060\052\060\005\006\003\053\145\160\003\041\000'; echo "$1" | base64 -d; } >"$work/key.der"
	echo "$3" | base64 -d >"$work/sig.raw"
	"$openssl" pkeyutl -verify -pubin -keyform DER -inkey "$work/key.der" -rawin -in "$2" -sigfile "$work/sig.raw" >/dev/null 2>&1
}

verify() {
	command -v openssl >/dev/null || fail "openssl is not here, so the signature cannot be checked; install openssl"
	openssl=
	for name in openssl openssl3; do # the second: EPEL's on RHEL 8 and its like
		if [ -z "$openssl" ] && "$name" pkeyutl -help 2>&1 | grep -q -e -rawin; then openssl=$name; fi
	done
	[ -n "$openssl" ] || fail "the signature cannot be checked here: $(openssl version) is too old, it takes openssl 3. On Rocky and Alma 8: dnf install epel-release && dnf install openssl3. Elsewhere check the release on a machine that has it, with RIVULET_DRY_RUN=1 sh install.sh, copy that folder here, and use --unsigned"
	get SHA256SUMS.sig
	[ "$(wc -c <"$work/SHA256SUMS.sig")" -lt 65536 ] || fail "SHA256SUMS.sig is too large; get the release once more"
	all=$(tr -d ' \n\t' <"$work/SHA256SUMS.sig")
	certificate=${all#*'"certificate":{'}
	certificate=${certificate%%\}*}
	key=$(text key "$certificate") root=$(text root "$certificate")
	generation=$(text generation "$certificate") vouched=$(text signature "$certificate")
	signature=$(text signature "${all#*\}}")
	case "$generation" in '' | 0* | *[!0-9]*) fail "SHA256SUMS.sig cannot be read; get the release once more" ;; esac
	case "$MIN_GENERATION" in '' | *[!0-9]*) fail "this script names no generation of keys; get it once more" ;; esac
	case ",$ROOT_KEYS," in *",$root,"*) [ -n "$root" ] ;; *) false ;; esac || fail "the release is signed by somebody whom this script does not trust; get both from the same place"
	{ printf 'rivulet signing key v1\000'; big "$generation"; echo "$key" | base64 -d; } >"$work/message"
	checked "$root" "$work/message" "$vouched" || fail "the signing key of this release is not vouched for; get the release once more"
	[ "${#generation}" -lt 19 ] && [ "$generation" -ge "$MIN_GENERATION" ] || fail "the release is signed by a key that was retired (generation $generation, taken is $MIN_GENERATION or newer); get a newer release"
	{ printf 'rivulet release file v1\000'; big "$(wc -c <"$work/SHA256SUMS")"; "$openssl" dgst -sha512 -binary "$work/SHA256SUMS"; } >"$work/message"
	checked "$key" "$work/message" "$signature" || fail "SHA256SUMS was changed or is damaged; get the release once more"
}

# hashed NAME: its hash is the one in SHA256SUMS.
hashed() {
	get "$1"
	want=$(sed -n "s/^\([0-9a-f]\{64\}\)  $1\$/\1/p" "$work/SHA256SUMS")
	have=$(sha256sum "$work/$1")
	[ -n "$want" ] && [ "${have%% *}" = "$want" ] || fail "$1 is not the file that SHA256SUMS names; get the release once more"
}

get SHA256SUMS
if [ -n "$unsigned" ]; then
	echo "install.sh: the signature is not checked" >&2
elif [ -z "$ROOT_KEYS" ]; then
	fail "this release was made without keys; if it is your own: --unsigned"
else
	verify
fi

# named PATTERN: the one file of SHA256SUMS whose name is like this.
named() { sed -n "s/^[0-9a-f]\{64\}  \($1\)\$/\1/p" "$work/SHA256SUMS" | head -n 1; }

if [ $with = dpkg ] && name=$(named "rivulet_[A-Za-z0-9.~+-]*_$deb\.deb") && [ -n "$name" ]; then
	set -- dpkg -i
elif [ $with = rpm ] && name=$(named "rivulet-[A-Za-z0-9.~+_-]*\.$rpm\.rpm") && [ -n "$name" ]; then
	set -- rpm -U
else
	name=$(named "rivulet-[A-Za-z0-9.+_-]*-linux-$arch\.zst")
	[ -n "$name" ] || fail "SHA256SUMS names no file for $arch"
	command -v zstd >/dev/null || fail "zstd is not here; install zstd"
	set -- binary
fi
hashed "$name"
if [ -n "${RIVULET_DRY_RUN:-}" ]; then
	echo "good: $name"
	exit 0
fi
if [ "$1" = binary ]; then
	zstd -d -q --long=27 "$work/$name" -o "$work/rivulet"
	chmod +x "$work/rivulet"
	"$work/rivulet" install
else
	"$@" "$work/$name"
fi
echo "Rivulet is installed; see: sudo rivulet status"
