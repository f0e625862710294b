package main

import (
	"crypto/ed25519"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"rivulet/image/signed"
)

const root = "../../.."

// The section of SECURITY.md is that of image/signed/roots.
func TestSecurityPageNamesTheRootKeys(t *testing.T) {
	p, err := signed.ReadRoots(filepath.Join(root, signed.RootsFile))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, securityPage))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(page), "\n"+rootsSection(p)) {
		t.Errorf("SECURITY.md does not end with what %s says; go run ./image/signed/sign roots. It should be:\n%s", signed.RootsFile, rootsSection(p))
	}
}

// follower types the commands of docs/design/keys.md in a copy of the tree.
type follower struct {
	t          *testing.T
	page, tree string
	env        []string
}

func newFollower(t *testing.T) follower {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/design/keys.md"))
	if err != nil {
		t.Fatal(err)
	}
	f := follower{t: t, page: string(page), tree: t.TempDir()}
	home := t.TempDir()
	passphrase := filepath.Join(home, "passphrase")
	if err := os.WriteFile(passphrase, []byte("six words that nobody would guess\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	goEnv, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE", "GOMODCACHE", "GOPATH").Output()
	if err != nil {
		t.Fatal(err)
	}
	dirs := strings.Fields(string(goEnv)) // HOME is another one
	f.env = append(os.Environ(), "HOME="+home, "KEYS="+home+"/rivulet-keys", passphraseFile+"="+passphrase, "GOCACHE="+dirs[0], "GOMODCACHE="+dirs[1], "GOPATH="+dirs[2], "GOFLAGS=-buildvcs=false")
	f.sh(`cd "$FROM" && cp --parents -r go.mod go.sum SECURITY.md image/signed "$TREE"`)
	return f
}

// sh runs commands in the copy; the error has what they said.
func (f follower) sh(commands string) {
	f.t.Helper()
	if out, err := f.try(commands); err != nil {
		f.t.Fatalf("%v: %s\n%s", err, out, commands)
	}
}

func (f follower) try(commands string) (string, error) {
	from, err := filepath.Abs(root)
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.CommandContext(f.t.Context(), "sh", "-euc", commands)
	cmd.Dir, cmd.Env = f.tree, append(f.env, "FROM="+from, "TREE="+f.tree)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var block = regexp.MustCompile("(?s)```sh\n(.*?)```")

// section runs all commands of a section.
func (f follower) section(heading string) {
	f.t.Helper()
	_, text, found := strings.Cut(f.page, "\n## "+heading+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	blocks := block.FindAllStringSubmatch(text, -1)
	if !found || len(blocks) == 0 {
		f.t.Fatalf("the page has no commands below %q", heading)
	}
	for _, b := range blocks {
		f.sh(b[1])
	}
}

// The page of keys, typed from its beginning to its end: what is signed by whom is taken by this tree, and not any more
// after the key was retired or its root was taken out.
func TestThePageOfKeys(t *testing.T) {
	f := newFollower(t)
	// The repository's own keys are not those of the page.
	f.sh("printf 'generation 1\\n' >image/signed/roots")
	f.section("Making")
	f.sh(`if grep -r -e "$(cat $KEYS/root-a.pub)" $KEYS/*.key; then exit 1; fi; for k in $KEYS/*.key; do [ "$(stat -c %a $k)" = 600 ]; head -n 1 $k | grep -q "BEGIN AGE ENCRYPTED FILE"; done`)
	refused := func(signer, why string) {
		t.Helper()
		out, err := f.try(`echo x >$KEYS/old; $KEYS/sign file -key $KEYS/` + signer + `.key -certificate $KEYS/` + signer + `.cert $KEYS/old; $KEYS/sign check $KEYS/old`)
		if err == nil || !strings.Contains(out, why) {
			t.Errorf("%s: %v, %s; want %q", signer, err, out, why)
		}
	}
	taken := func(signer string) {
		t.Helper()
		f.sh(`echo x >$KEYS/new; $KEYS/sign file -key $KEYS/` + signer + `.key -certificate $KEYS/` + signer + `.cert $KEYS/new; $KEYS/sign check $KEYS/new`)
	}
	taken("signing-1")
	f.section("A new signing key")
	taken("signing-2")
	refused("signing-1", "was retired")
	f.section("A lost root key")
	taken("signing-3")
	refused("signing-2", "nobody whom this rivulet trusts vouches for its key")
	p, err := signed.ReadRoots(filepath.Join(f.tree, signed.RootsFile))
	if err != nil || len(p.Roots) != 2 || p.Oldest != 3 {
		t.Errorf("%v %+v", err, p)
	}
	page, err := os.ReadFile(filepath.Join(f.tree, securityPage))
	if err != nil || !strings.HasSuffix(string(page), rootsSection(p)) || strings.Count(string(page), keysHeading) != 1 {
		t.Errorf("%v: %s", err, page)
	}
	for _, r := range p.Roots {
		if !strings.Contains(string(page), r.Text()) {
			t.Errorf("SECURITY.md does not have %s", r.Name)
		}
	}
}

// The commands of the page make a key that image/package/repository takes for releases of this tree, and a new one in its place.
func TestThePageOfPackagesKey(t *testing.T) {
	if _, err := exec.LookPath("gpg"); err != nil {
		t.Skip("needs gpg: test/deps test")
	}
	f := newFollower(t)
	// A passphrase of its own, in a folder with a space; that of the other keys does not open it.
	own := filepath.Join(t.TempDir(), "a folder", "passphrase")
	if err := os.Mkdir(filepath.Dir(own), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own, []byte("six other words that nobody would guess\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.env = append(f.env, "RIVULET_PACKAGES_PASSPHRASE_FILE="+own)
	f.sh(`mkdir -m 700 $KEYS; cd "$FROM" && cp --parents image/package/repository image/package/repository.asc "$TREE"`)
	defer f.sh(`! [ -e $KEYS/gnupg ] || GNUPGHOME=$KEYS/gnupg gpgconf --kill all`)
	for range 2 { // the second time is its replacement
		// gpg asks on the terminal; here it reads the passphrase as the script does.
		f.sh(`mkdir -m 700 $KEYS/gnupg && printf 'batch\nquiet\npinentry-mode loopback\npassphrase-file %s\n' "$RIVULET_PACKAGES_PASSPHRASE_FILE" >$KEYS/gnupg/gpg.conf`)
		f.section("The key of the packages")
		f.sh(`[ ! -e $KEYS/gnupg ] && ! pgrep -f "[g]pg-agent --homedir $KEYS/gnupg"`)
		f.sh(`image/package/repository check $KEYS/packages.key https://example.org/rivulet`)
		if out, err := f.try(`RIVULET_PACKAGES_PASSPHRASE_FILE="$` + passphraseFile + `" image/package/repository check $KEYS/packages.key https://example.org/rivulet`); err == nil || !strings.Contains(out, "type it once more") {
			t.Errorf("the passphrase of the other keys: %v: %s", err, out)
		}
		f.sh(`mv $KEYS/packages.key $KEYS/before.key`)
	}
	if out, err := f.try(`sed -i 's/^fingerprint ./fingerprint 0/' image/package/repository.asc; image/package/repository check $KEYS/before.key https://example.org/rivulet`); err == nil || !strings.Contains(out, "has another key than its line") {
		t.Errorf("another fingerprint was taken: %s", out)
	}
}

// A key file opens with its passphrase only, and a short one is not taken for a new key.
func TestPassphrase(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.key")
	passphrase := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "passphrase"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(passphraseFile, filepath.Join(dir, "passphrase"))
	passphrase("short\n")
	var out strings.Builder
	if err := run([]string{"key", file}, &out); err == nil || !strings.Contains(err.Error(), "random words") || out.Len() > 0 {
		t.Errorf("a short one: %v, %s", err, &out)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a refused key was written")
	}
	passphrase("long enough for this")
	if err := run([]string{"key", file}, &out); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"key", file}, &out); err == nil {
		t.Error("a key was written over another")
	}
	private, err := readKey(file)
	if err != nil || (signed.Root{Key: private.Public().(ed25519.PublicKey)}).Text() != strings.TrimSpace(out.String()) {
		t.Errorf("%v: not the key that was printed", err)
	}
	passphrase("another one, longer")
	if _, err := readKey(file); err == nil || !strings.Contains(err.Error(), "does not fit") {
		t.Errorf("another passphrase: %v", err)
	}
	if err := os.WriteFile(file, []byte("AAAA"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readKey(file); err == nil || !strings.Contains(err.Error(), "backup") {
		t.Errorf("no file of age: %v", err)
	}
}
