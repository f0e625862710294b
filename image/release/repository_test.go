package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/image/filesum"
)

// needs skips where a Debian tool is missing.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("needs " + p + ": test/deps test")
		}
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: rpm and dnf write into a folder as root")
	}
}

// openPGP makes a key as docs/design/keys.md does and returns its file, sealed with the passphrase in the other one.
func openPGP(t *testing.T) (key, passphrase string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "the keys") // paths may have spaces
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	key, passphrase = filepath.Join(dir, "packages.key"), write(t, dir, "passphrase", []byte("six words of this very test\nmore\n"))
	sh(t, dir, `export GNUPGHOME=$(mktemp -d) && trap 'gpgconf --kill all; rm -rf $GNUPGHOME' EXIT
		with="--batch --quiet --pinentry-mode loopback --passphrase-file passphrase"
		gpg $with --quick-generate-key "Rivulet's packages" rsa3072 sign never 2>/dev/null && gpg $with --armor --export-secret-keys >packages.key`)
	return key, passphrase
}

// tiny makes a package of each kind, with a program that says its version, in DIR/amd64.
func tiny(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	sh(t, dir, `mkdir -p amd64 deb/DEBIAN deb/usr/bin && printf '#!/bin/sh\necho %s\n' $1 >deb/usr/bin/tiny && chmod 755 deb/usr/bin/tiny && touch -d @1700000000 deb/usr/bin/tiny
		printf 'Package: tiny\nVersion: %s\nArchitecture: amd64\nMaintainer: T <t@example.org>\nDescription: tiny\n' $1 >deb/DEBIAN/control
		SOURCE_DATE_EPOCH=1700000000 dpkg-deb --root-owner-group --build deb amd64/tiny_$1_amd64.deb >/dev/null
		printf 'Name: tiny\nVersion: %s\nRelease: 1\nSummary: tiny\nLicense: MIT\nBuildArch: noarch\nAutoReqProv: no\n%%description\ntiny\n%%install\nmkdir -p %%{buildroot}/usr/bin\ncp %s %%{buildroot}/usr/bin/tiny\n%%files\n/usr/bin/tiny\n' $1 $PWD/deb/usr/bin/tiny >tiny.spec
		SOURCE_DATE_EPOCH=1700000000 rpmbuild --quiet --define "_topdir $PWD/rpm" --define "_build_name_fmt %{NAME}-%{VERSION}.rpm" --define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime 1" -bb tiny.spec 2>&1 && mv rpm/RPMS/tiny-$1.rpm amd64/ && rm -r deb rpm tiny.spec`, version)
	return dir
}

// published makes a folder as bin/release is, of the packages.
func published(t *testing.T, from, key, passphrase, url string, at time.Time) string {
	t.Helper()
	return publishedIn(t, "../..", from, key, passphrase, url, at)
}

// publishedIn is published in the tree.
func publishedIn(t *testing.T, tree, from, key, passphrase, url string, at time.Time) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "release")
	sh(t, tree, `RIVULET_PACKAGES_PASSPHRASE_FILE="$1" image/package/repository make "$2" "$3" "$4" $5 $6 && cp "$3"/*/* "$4"/`, passphrase, key, from, out, strconv.FormatInt(at.Unix(), 10), url)
	return out
}

// client runs apt-get or dnf with folders of its own, from the files of the folder that is served.
type client struct {
	t         *testing.T
	dir       string
	tool, url string
}

func (c client) run(words ...string) (string, error) {
	c.t.Helper()
	var args []string
	if c.tool == "apt-get" {
		for _, d := range []string{"state/lists/partial", "cache/archives/partial", "etc/sources.list.d"} {
			if err := os.MkdirAll(filepath.Join(c.dir, d), 0o755); err != nil {
				c.t.Fatal(err)
			}
		}
		write(c.t, c.dir, "status", nil)
		for _, o := range []string{
			"Dir=" + c.dir, "Dir::State=" + c.dir + "/state", "Dir::Cache=" + c.dir + "/cache", "Dir::Etc=" + c.dir + "/etc", "Dir::State::status=" + c.dir + "/status",
			"Dir::Bin::Methods=/usr/lib/apt/methods", "APT::Architecture=amd64", "APT::Architectures=amd64", "APT::Sandbox::User=root", "APT::Update::Error-Mode=any", "Acquire::http::Proxy=DIRECT", "Acquire::Retries=0", "Acquire::Check-Date=true", "Acquire::Check-Valid-Until=true", "Acquire::AllowInsecureRepositories=false",
		} {
			args = append(args, "-o", o)
		}
	} else {
		if err := os.MkdirAll(filepath.Join(c.dir, "root"), 0o755); err != nil {
			c.t.Fatal(err)
		}
		args = []string{"--assumeyes", "--quiet", "--installroot=" + c.dir + "/root", "--releasever=1", "--forcearch=x86_64", "--config=" + write(c.t, c.dir, "dnf.conf", []byte("[main]\nretries=1\nplugins=0\ncachedir="+c.dir+"/cache\n")), "--setopt=reposdir=" + c.dir}
	}
	cmd := exec.CommandContext(c.t.Context(), c.tool, append(args, words...)...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "APT_CONFIG=/dev/null", "LC_ALL=C", "http_proxy=", "no_proxy=*")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// newest takes the newest package as an owner would, and returns its version.
func (c client) newest() (string, error) {
	c.t.Helper()
	if c.tool == "apt-get" {
		if out, err := c.run("update"); err != nil {
			return out, err
		}
		if out, err := c.run("download", "tiny"); err != nil {
			return out, err
		}
		files, err := filepath.Glob(c.dir + "/tiny_*.deb")
		if err != nil || len(files) == 0 {
			c.t.Fatalf("apt-get download left nothing: %v", err)
		}
		out, err := exec.CommandContext(c.t.Context(), "dpkg-deb", "-f", files[len(files)-1], "Version").Output()
		return strings.TrimSpace(string(out)), err
	}
	verb := "install"
	if _, err := os.Stat(c.dir + "/root/usr/bin/tiny"); err == nil {
		verb = "upgrade"
	}
	if out, err := c.run(verb, "--refresh", "tiny"); err != nil {
		return out, err
	}
	out, err := exec.CommandContext(c.t.Context(), "rpm", "--root", c.dir+"/root", "-q", "--qf", "%{VERSION}", "tiny").CombinedOutput()
	return string(out), err
}

// asInstalled gives the client what the page tells the owner to fetch.
func (c client) asInstalled(release string) {
	c.t.Helper()
	if c.tool == "apt-get" {
		sh(c.t, c.dir, `mkdir -p etc/sources.list.d && cp "$1/rivulet.sources" etc/sources.list.d/`, release)
		return
	}
	sh(c.t, c.dir, `cp "$1/rivulet.asc" . && sed "s|///etc/pki/rpm-gpg|//$PWD|" "$1/rivulet.repo" >rivulet.repo && grep -q "gpgkey=file://$PWD/rivulet.asc" rivulet.repo`, release)
}

// apt and dnf install what a release publishes, and nothing that somebody on the way has changed, taken from elsewhere or kept.
func TestRepositoriesRefuseWhatIsChangedOnTheWay(t *testing.T) {
	needs(t, "gpg", "apt-ftparchive", "createrepo_c", "rpmsign", "rpmbuild", "dpkg-deb", "apt-get", "dnf")
	var served string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		http.FileServer(http.Dir(served)).ServeHTTP(w, r)
	}))
	defer server.Close()
	key, passphrase := openPGP(t)
	stranger, of := openPGP(t)
	now := time.Now()
	first, second := tiny(t, "0.1.0"), tiny(t, "0.2.0")
	old := published(t, first, key, passphrase, server.URL, now.Add(-24*time.Hour))
	good := published(t, second, key, passphrase, server.URL, now)
	forged := published(t, tiny(t, "6.6.6"), stranger, of, server.URL, now)
	stale := published(t, tiny(t, "0.1.0"), key, passphrase, server.URL, now.AddDate(-1, 0, -2))

	for _, tool := range []string{"apt-get", "dnf"} {
		fresh := func(t *testing.T) client {
			c := client{t, t.TempDir(), tool, server.URL}
			c.asInstalled(good)
			return c
		}
		is := func(t *testing.T, c client, release, want string) {
			t.Helper()
			served = release
			if got, err := c.newest(); err != nil || got != want {
				t.Errorf("%v, %s, want %s", err, got, want)
			}
		}
		t.Run(tool+" takes each release", func(t *testing.T) {
			c := fresh(t)
			is(t, c, old, "0.1.0")
			is(t, c, good, "0.2.0")
		})
		t.Run(tool+" does not go back", func(t *testing.T) {
			c := fresh(t)
			is(t, c, good, "0.2.0")
			served = old
			if got, err := c.newest(); err == nil && got != "0.2.0" {
				t.Errorf("it went back to %s", got)
			}
			is(t, c, good, "0.2.0")
		})
		// Each is refused by a client that has never been here, and by one that has.
		for name, change := range map[string]string{
			"a changed package":                 `printf x | dd of=$(ls tiny*.deb) bs=1 seek=200 conv=notrunc status=none; printf x | dd of=$(ls tiny*.rpm) bs=1 seek=5000 conv=notrunc status=none`,
			"a changed index":                   `sed -i 's/0\.2\.0/6.6.6/' dists/stable/main/*/Packages; for f in repodata/*-primary.xml.gz; do zcat $f | sed 's/0\.2\.0/6.6.6/' | gzip >x && mv x $f; done`,
			"a changed list of indexes":         `sed -i 's/ [0-9a-f]* \([0-9]*\) main/ '$(printf '%064d' 0)' \1 main/' dists/stable/InRelease; sed -i 's/<size>/<size>1/' repodata/repomd.xml`,
			"no signature":                      `sed -n '/^Origin/,/^-----BEGIN/p' dists/stable/InRelease | grep -v ^--- >dists/stable/Release; rm dists/stable/InRelease repodata/repomd.xml.asc`,
			"all of it by a stranger":           `rm -r dists repodata tiny*; cp -r "$1"/. .`,
			"a stranger's package in its place": `rm tiny*; cp "$1"/tiny*.deb "$1"/tiny*.rpm . ; mv tiny_*.deb tiny_0.2.0_amd64.deb; mv tiny-*.rpm tiny-0.2.0.rpm`,
		} {
			t.Run(tool+" refuses "+name, func(t *testing.T) {
				changed := filepath.Join(t.TempDir(), "release")
				sh(t, ".", `cp -r "$2" "$3" && cd "$3" && set -e && `+change, forged, good, changed)
				for who, before := range map[string]string{"new here": "", "known": old} {
					c := fresh(t)
					if before != "" {
						is(t, c, before, "0.1.0")
					}
					served = changed
					if got, err := c.newest(); err == nil && got != "0.1.0" {
						t.Errorf("%s: took %s", who, got)
					} else if err == nil && before == "" {
						t.Errorf("%s: nothing was refused", who)
					}
				}
			})
		}
	}
	// dnf knows no end of an index: it stays with what it has.
	t.Run("apt-get refuses what is older than a year", func(t *testing.T) {
		c := client{t, t.TempDir(), "apt-get", server.URL}
		c.asInstalled(good)
		served = stale
		if got, err := c.newest(); err == nil || !strings.Contains(got, "expired") {
			t.Errorf("%v: %s", err, got)
		}
	})
}

// aSystem runs a script as root of a copy of this machine's files, which is gone afterwards: with its real dpkg, apt and dnf, and
// no archive for apt but what the script adds.
const aSystem = `mount -t tmpfs tmpfs "$1" && mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" "$1/root" && cd "$1/root"
mount -t proc proc proc && mount -t tmpfs tmpfs run && mount --rbind /dev dev
rm -rf etc/apt/sources.list etc/apt/sources.list.d/* etc/yum.repos.d usr/sbin/policy-rc.d && mkdir -p etc/yum.repos.d etc/pki/rpm-gpg
echo 'Acquire::http::Proxy::127.0.0.1 "DIRECT";' >etc/apt/apt.conf.d/zz-here
exec chroot . sh -euxc "$2"`

// The commands of the page install the packages of this tree from a signed repository, and the next release comes with the
// system's updates: with the key in rivulet.sources for apt, and gpgcheck for dnf.
func TestThePageInstallsFromTheRepositories(t *testing.T) {
	needs(t, "gpg", "apt-ftparchive", "createrepo_c", "rpmsign", "apt-get", "dnf", "rpm", "curl", "unshare")
	t.Chdir("../..")
	if _, err := os.Stat("_build/nfpm"); err != nil {
		t.Skip("needs _build/nfpm: make test-binaries")
	}
	page, err := os.ReadFile("docs/guide/how-to.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Updates by apt or dnf\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?s)```\n(.*?)```").FindAllStringSubmatch(section, -1)
	if len(blocks) != 2 {
		t.Fatalf("the page has %d blocks of commands", len(blocks))
	}
	arch := thisArch()
	key, passphrase := openPGP(t)
	var releases [2]string
	var next atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if r.URL.Path == "/next" {
			next.Add(1)
			return
		}
		http.FileServer(http.Dir(releases[next.Load()])).ServeHTTP(w, r)
	}))
	defer server.Close()
	for i, version := range []string{"v0.1.0", "v0.2.0"} {
		dir := t.TempDir()
		binary := write(t, dir, "rivulet", []byte("#!/bin/sh\necho program "+version+"\n"))
		sh(t, ".", `mkdir "$1/packages" && exec make --no-print-directory package VERSION="$2" BUILD_TIME=1700000000 PACKAGE_ARCH="$3" BINARY="$4" INTO="$1/packages/$3"`, dir, version, arch, binary)
		releases[i] = publishedIn(t, ".", filepath.Join(dir, "packages"), key, passphrase, server.URL, time.Now().Add(time.Duration(i-2)*time.Hour))
	}
	for i, tool := range []struct{ name, upgrade, has, signed, remove string }{
		{"apt-get", "apt-get update && apt-get -y upgrade", "dpkg-query --show --showformat '${Package} ${Version} ${db:Status-Abbrev}\n' rivulet", "true", "apt-get -y remove rivulet"},
		{"dnf", "dnf -y upgrade --refresh", "rpm -q --queryformat '%{NAME} %{VERSION} ii\n' rivulet", "rpm -qi rivulet | grep '^Signature.*RSA/SHA256'", "dnf -y remove rivulet"},
	} {
		t.Run(tool.name, func(t *testing.T) {
			next.Store(0)
			typed := strings.NewReplacer("sudo ", "", "RELEASES", server.URL, "apt-get install", "apt-get -y install", "dnf install", "dnf -y install").Replace(blocks[i][1])
			script := typed + tool.has + "; rivulet\n" + tool.signed + "\nsystemctl is-enabled rivulet\ncurl -fsS " + server.URL + "/next\n" + tool.upgrade + "\n" + tool.has + "; rivulet\n" + tool.remove + "; [ ! -e /usr/bin/rivulet ] && echo gone\n"
			cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", aSystem, "sh", t.TempDir(), script)
			cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "HOME=/root", "http_proxy=", "no_proxy=*")
			var said, errOut bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &errOut
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v: %s%s", err, said.String(), errOut.String())
			}
			rest := said.String()
			for _, want := range []string{"rivulet 0.1.0 ii", "program v0.1.0\n", "enabled\n", "rivulet 0.2.0 ii", "program v0.2.0\n", "gone\n"} {
				_, after, found := strings.Cut(rest, want)
				if !found {
					t.Fatalf("%q is not next in %s\n%s", want, said.String(), errOut.String())
				}
				rest = after
			}
		})
	}
}

// The same packages, key, time and address make the same files, whatever the umask, the hour and the time zone.
func TestRepositoriesAreTheSameTwice(t *testing.T) {
	needs(t, "gpg", "apt-ftparchive", "createrepo_c", "rpmsign", "rpmbuild", "dpkg-deb")
	key, passphrase := openPGP(t)
	from := tiny(t, "0.1.0")
	var all [2]map[string]string
	for i := range all {
		dir := t.TempDir()
		sh(t, "../..", `umask $1; export TZ=$2; cp -r "$3" "$4/from" && touch -d "$5 days ago" "$4"/from/*/*
			RIVULET_PACKAGES_PASSPHRASE_FILE="$6" image/package/repository make "$7" "$4/from" "$4/out" 1900000000 https://example.org`,
			[]string{"022", "077"}[i], []string{"UTC", "Asia/Tokyo"}[i], from, dir, []string{"1", "400"}[i], passphrase, key)
		all[i] = map[string]string{}
		for path := range strings.FieldsSeq(sh(t, dir, "find from out -type f")) {
			sum, _, err := filesum.SHA256(filepath.Join(dir, path))
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(filepath.Join(dir, path))
			if err != nil {
				t.Fatal(err)
			}
			all[i][path] = sum
			if strings.HasPrefix(path, "out/") {
				all[i][path] += info.Mode().String()
			}
		}
	}
	if len(all[0]) < 10 || fmt.Sprint(all[0]) != fmt.Sprint(all[1]) {
		t.Errorf("%v\n%v", all[0], all[1])
	}
}

// Which key may sign what.
func TestTheKeyOfTheRepositories(t *testing.T) {
	needs(t, "gpg")
	key, passphrase := openPGP(t)
	stranger, _ := openPGP(t)
	script, err := filepath.Abs("../package/repository")
	if err != nil {
		t.Fatal(err)
	}
	public := sh(t, ".", `export GNUPGHOME=$(mktemp -d); trap 'gpgconf --kill all; rm -rf $GNUPGHOME' EXIT
		gpg --batch --quiet --show-keys --with-colons "$1" 2>/dev/null | awk -F: '$1 == "fpr" {print "fingerprint " $10; exit}'
		gpg --batch --quiet --import "$1" 2>/dev/null; gpg --batch --armor --export`, key)
	other := strings.Replace(public, "fingerprint ", "fingerprint 0", 1)
	for name, tc := range map[string]struct{ published, key, passphrase, draft, want string }{
		"nothing yet":               {"there is none", "", "", "", ""},
		"none given":                {public, "", "", "", "make release REPO_KEY=FILE"},
		"a draft without":           {public, "", "", "1", ""},
		"the right one":             {public, key, passphrase, "", ""},
		"another":                   {public, stranger, passphrase, "", "take the key of that fingerprint"},
		"none published":            {"there is none", key, passphrase, "", "publish this one by docs/design/keys.md"},
		"another line":              {other, key, passphrase, "", "has another key than its line"},
		"a draft for all":           {public, key, passphrase, "1", "a draft is tested by nobody; leave REPO_KEY= out"},
		"a draft with one's own":    {public, stranger, passphrase, "1", ""},
		"a draft that lies nowhere": {public, stranger, passphrase, "1", "RELEASES ?= https://…, or leave REPO_KEY= out"},
		"a wrong passphrase":        {public, key, write(t, t.TempDir(), "p", []byte("wrong\n")), "", "type it once more"},
		"no key at all":             {public, passphrase, passphrase, "", "is no private OpenPGP key"},
		"the public half, by error": {public, write(t, t.TempDir(), "k", []byte(public)), passphrase, "", "is no private OpenPGP key"},
	} {
		t.Run(name, func(t *testing.T) {
			tree := t.TempDir()
			if err := os.MkdirAll(filepath.Join(tree, "image/package"), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, tree, "image/package/repository.asc", []byte(tc.published))
			url := "https://example.org/rivulet"
			if name == "a draft that lies nowhere" {
				url = ""
			}
			cmd := exec.CommandContext(t.Context(), script, "check", tc.key, url)
			var errOut bytes.Buffer
			cmd.Dir, cmd.Env, cmd.Stderr = tree, append(os.Environ(), "DRAFT="+tc.draft, "RIVULET_PACKAGES_PASSPHRASE_FILE="+tc.passphrase), &errOut
			err := cmd.Run()
			if (err == nil) != (tc.want == "") || !strings.Contains(errOut.String(), tc.want) {
				t.Errorf("%v: %s, want %q", err, errOut.String(), tc.want)
			}
		})
	}
}

// Files of keys may lie in folders with spaces: every command of make release has them in quotes.
func TestMakeReleaseQuotesTheFilesOfKeys(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "make", "-C", "../..", "--no-print-directory", "-n", "release", "MAKE=true", "VERSION=v1-draft", "DRAFT=1", "IMAGES=", "ARCHES=amd64",
		"SIGN_KEY=/the keys/signing.key", "SIGN_CERT=/the keys/signing.cert", "REPO_KEY=/the keys/packages.key")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"signing.key", "signing.cert", "packages.key"} {
		all, quoted := strings.Count(string(out), "/the keys/"+name), strings.Count(string(out), "'/the keys/"+name+"'")
		if all < 3 || quoted != all {
			t.Errorf("%s is there %d times, in quotes %d times: %s", name, all, quoted, out)
		}
	}
}

// The repositories are published as they are; what lies beside the packages is hashed with the rest.
func TestRepositoriesArePublishedWithTheRelease(t *testing.T) {
	t.Chdir("../..")
	repository, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	sh(t, repository, `mkdir -p dists/stable && echo list >dists/stable/InRelease && echo key >rivulet.sources`)
	if err := run(origin{tree: ".", version: "v0.1.0", draft: true, built: "1700000000", rootKeys: "root"}, t.TempDir(), out, "", "", repository, "", nil, nil); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, out, `cat dists/stable/InRelease; sha256sum --quiet -c SHA256SUMS; grep -c -e rivulet.sources -e InRelease SHA256SUMS`); got != "list\n1\n" {
		t.Errorf("%s", got)
	}
}
