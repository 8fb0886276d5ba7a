#!/bin/bash
# Takes real English text from Debian's documentation packages: fetch_text.sh DEST
# Downloads and unpacks them below DEST without installing anything (no root needed). A DEST that is complete stays.
set -euo pipefail

dest=${1:?usage: fetch_text.sh DEST}
wanted="python3-doc postgresql-doc git-doc debian-reference-en debian-policy developers-reference debian-faq
  aptitude-doc-en"

fail() { echo "fetch_text.sh: $*" >&2; exit 1; }

if [ -f "$dest/packages.txt" ]; then
  echo "text: $dest is there already ($(find "$dest" -name '*.html' | wc -l) pages)"
  exit 0
fi
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "needs apt-get and dpkg-deb (a Debian system)"

work=$(mktemp -d)
trap 'rm -rf "$work" "$dest.partial"' EXIT
mkdir -p "$work/deb" "$work/root"
chmod 755 "$work" "$work/deb"

# python3-doc and postgresql-doc only name the package of the release's version.
packages=
for package in $wanted; do
  case $package in
    python3-doc | postgresql-doc)
      package=$(apt-cache depends --important "$package" 2>/dev/null |
        sed -n 's/^ *Depends: \(python3\.[0-9]*-doc\|postgresql-doc-[0-9]*\)$/\1/p' | head -n 1) || true
      [ -n "$package" ] || fail "apt knows no documentation packages: run 'apt-get update' as root, then try again"
      ;;
  esac
  packages+=" $package"
done

echo "text: downloading$packages"
download() { (cd "$work/deb" && apt-get -qq -o APT::Sandbox::User=root download "$@") 2>"$work/errors"; }
if ! download $packages; then
  # The newest version may have left the archive since the last 'apt-get update': take any that is still there.
  for package in $packages; do
    got=
    for version in $(apt-cache madison "$package" | awk '{print $3}' | uniq); do
      if download "$package=$version"; then got=1; break; fi
    done
    [ -n "$got" ] || fail "cannot download $package: $(tail -n 1 "$work/errors"); run 'apt-get update' as root and try again"
  done
fi

for deb in "$work"/deb/*.deb; do
  dpkg-deb -x "$deb" "$work/root" || fail "cannot unpack $(basename "$deb")"
done

# English pages only, without indexes, search pages, and the one-page forms of books that come in chapters as well.
mkdir -p "$(dirname "$dest")"
rm -rf "$dest.partial"
mkdir "$dest.partial"
(cd "$work/root/usr/share" && find doc debian-reference developers-reference -name '*.html' \
  ! -path '*/_sources/*' ! -path '*/_static/*' ! -name 'genindex*' ! -name 'py-modindex*' \
  ! -name 'search.html' ! -name 'contents.html' \
  ! -name 'bookindex.html' ! -name '*-1.html' ! -name 'developers-reference.html' \( -type f -o -type l \) -print0 |
  tar --null --dereference --no-recursion -cf - -T -) | tar -xf - -C "$dest.partial"
(cd "$work/deb" && ls -1) >"$dest.partial/packages.txt"
rm -rf "$dest"
mv "$dest.partial" "$dest"
echo "text: $(find "$dest" -name '*.html' | wc -l) pages, $(du -sh "$dest" | cut -f1), in $dest"
