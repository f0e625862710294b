package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"rivulet/appliance/config"
	"rivulet/appliance/config/signin"
	"rivulet/image/flash"
)

// What is wrong with the file for a device is told before its card is written.
func TestDeviceConfig(t *testing.T) {
	for content, words := range map[string]string{
		"name: lab-1\nwifi:\n  country: DE\n":  "",
		"nmae: lab-1\n":                        "nmae",
		"name: [\n":                            "correct it first",
		"name: Bad_Name\n":                     "bad-name",
		"":                                     "is empty",
		strings.Repeat("#", flash.MaxConfig+1): "larger than",
	} {
		file := filepath.Join(t.TempDir(), "rivulet.yaml")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := deviceConfig(file)
		if words == "" && (err != nil || string(got) != content) || words != "" && (err == nil || !strings.Contains(err.Error(), words)) {
			t.Errorf("%.30q: %q %v, want %q", content, got, err, words)
		}
	}
	if got, err := deviceConfig(""); got != nil || err != nil {
		t.Errorf("%q %v", got, err)
	}
	if _, err := deviceConfig(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "name a rivulet.yaml") {
		t.Error(err)
	}
}

// What is wrong with a folder for a device is told before its card is written.
func TestDeviceNetworks(t *testing.T) {
	dir := t.TempDir()
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "a.network"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct{ dir, want string }{{filepath.Join(dir, "none"), "name a folder"}, {dir, "has no file"}} {
		if _, err := deviceNetworks(tc.dir, nil); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.dir, err)
		}
	}
	put("[Match]\nName=eth0\n[Network]\nAddress=192.0.2.7\n")
	if _, err := deviceNetworks(dir, nil); err == nil || !strings.Contains(err.Error(), "a.network:4:1: Address: 192.0.2.7 has no length") || !strings.Contains(err.Error(), "nothing was written") {
		t.Error(err)
	}
	put("[Match]\nName=eth0\n[Network]\nDHCP=yes\n")
	if files, err := deviceNetworks(dir, nil); err != nil || len(files) != 1 || len(files["a.network"]) == 0 {
		t.Errorf("%v, %v", files, err)
	}
	if files, err := deviceNetworks("", nil); err != nil || files != nil {
		t.Errorf("%v, %v", files, err)
	}
}

// A card has a name and the hash of a code; what the given file has stays.
func TestNewCard(t *testing.T) {
	hash := signin.New().Hash()
	for _, tt := range []struct{ given, name, want, err string }{
		{"", "", `^[a-z]+-[a-z]+-[0-9]{2}$`, ""}, {"", "lab-7", "^lab-7$", ""}, {"ingress: true # mine\n", "lab-7", "^lab-7$", ""},
		{"name: pi\n", "", "^pi$", ""}, {"name: pi\n", "pi", "^pi$", ""}, {"name: pi\n", "lab-7", "", "leave out --name"},
		{"", "Bad_Name", "", "--name: "}, {"name: pi\nconsoleCode: " + hash + "\n", "", "^pi$", ""},
	} {
		cmd := newFlash(&common{})
		cmd.SetIn(strings.NewReader(""))
		k, err := newCard(cmd, []byte(tt.given), tt.name)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%+v: %v", tt, err)
			}
			continue
		}
		_, parsed := config.ParseCard(k.content, config.Options{File: config.CardName})
		if err != nil || len(parsed.Problems) > 0 || !regexp.MustCompile(tt.want).MatchString(k.Name) || parsed.Config.Name != k.Name || !strings.HasPrefix(string(k.content), tt.given) {
			t.Fatalf("%+v: %+v, %v\n%s", tt, k, err, k.content)
		}
		if code, err := signin.Parse(k.Code); strings.Contains(tt.given, hash) {
			if k.Code != "" || parsed.Config.ConsoleCode != hash {
				t.Errorf("the code of the file is replaced: %+v", k)
			}
		} else if err != nil || code.Hash() != parsed.Config.ConsoleCode || strings.Contains(string(k.content), k.Code) {
			t.Errorf("%+v: %v", k, err)
		}
		var out bytes.Buffer
		if err := (&common{output: "json"}).print(&out, flashed{card: k}); err != nil || !strings.Contains(out.String(), `"name":"`+k.Name+`","address":"http://`+k.Name+`.local"`) {
			t.Errorf("%s %v", out.String(), err)
		}
		out.Reset()
		if err := printFlashed(&out, flashed{card: k}); err != nil || !strings.Contains(out.String(), "https://"+k.Name+".local:7443") || !strings.Contains(out.String(), k.Code) {
			t.Errorf("%s %v", out.String(), err)
		}
	}
}

func TestQueryName(t *testing.T) {
	for typed, want := range map[string]string{"": "brisk-otter", "\n": "brisk-otter", " Lab-7 \n": "lab-7", "a b\nlab-8\n": "lab-8"} {
		var out bytes.Buffer
		if got := queryName(strings.NewReader(typed), &out, "brisk-otter"); got != want || !strings.HasPrefix(out.String(), "name [brisk-otter]: ") {
			t.Errorf("%q: %q, %q", typed, got, out.String())
		}
	}
}

// Where nobody looks at a terminal, a line for each tenth of each stage.
func TestMeter(t *testing.T) {
	var out bytes.Buffer
	m := &meter{out: &out}
	for _, s := range []flash.Stage{flash.Checking, flash.Writing} {
		for done := int64(0); done <= 1000; done++ {
			m.progress(s, done, 1000)
		}
		m.end()
	}
	m.progress(flash.Reading, 5, 0)
	if lines := strings.Count(out.String(), "\n"); lines != 22 || !strings.Contains(out.String(), "writing: 100 % of 1000 bytes\n") {
		t.Errorf("%d lines:\n%s", lines, out.String())
	}
}

// A card is written after a yes; an internal disk, which may have somebody's Windows on it, after its name alone.
func TestAnInternalDiskIsNamed(t *testing.T) {
	card, inside := flash.Disk{Path: "/dev/sda", Removable: true}, flash.Disk{Path: "/dev/nvme1n1"}
	for _, tt := range []struct {
		disk     flash.Disk
		flags    []string
		internal bool
		want     string
	}{
		{card, nil, false, "add --yes: flash image --yes"}, {card, []string{"--yes"}, false, ""},
		{inside, []string{"--yes"}, false, "All is lost. Nothing was done; it is an internal disk"}, {inside, []string{"--yes"}, false, ": flash image --internal --yes"},
		{inside, []string{"--internal"}, true, ": flash image --internal --yes"}, {inside, nil, false, ": flash image --internal --yes"},
		{inside, []string{"--yes", "--internal"}, true, ""},
	} {
		cmd := newFlash(&common{})
		cmd.SetIn(strings.NewReader("yes\n"))
		if err := cmd.ParseFlags(append([]string{"image"}, tt.flags...)); err != nil {
			t.Fatal(err)
		}
		err := confirmDisk(cmd, tt.disk, "write it", "all is lost", tt.internal)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %v: %v, want %q", tt.disk.Path, tt.flags, err, tt.want)
		}
	}
	for answer, want := range map[string]bool{"nvme1n1\n": true, "yes\n": false, "nvme1n1p1\n": false, "": false} {
		cmd := newFlash(&common{})
		var out bytes.Buffer
		cmd.SetIn(strings.NewReader(answer))
		cmd.SetErr(&out)
		if err := typed(cmd, "write it? All is lost.", "nvme1n1"); (err == nil) != want || out.String() != "Write it? All is lost.\nIf so, type nvme1n1: " {
			t.Errorf("%q: %v, %q", answer, err, out.String())
		}
	}
}
