package upgrade

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"rivulet/appliance/version"
)

// machines are the ELF names of the supported architectures.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "arm": elf.EM_ARM}

// BuildID returns the linker's unique ID of a binary.
func BuildID(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("update: %s: %w", path, err)
	}
	defer f.Close()
	return buildID(f, path)
}

// Go's own is derived from the inputs, folders included. Reproducible releases are built without it, and have the C
// linker's, derived from the content.
var buildNotes = []struct {
	section, owner string
	read           func([]byte) string
}{
	{".note.go.buildid", "Go\x00\x00", func(b []byte) string { return string(b) }},
	{".note.gnu.build-id", "GNU\x00", hex.EncodeToString},
}

func buildID(f *elf.File, path string) (string, error) {
	ofGo := f.Section(".go.buildinfo") != nil // in every program of Go's linker, and in no other
	for _, n := range buildNotes {
		note := f.Section(n.section)
		if note == nil || !ofGo {
			continue
		}
		raw, err := note.Data()
		if err != nil {
			return "", fmt.Errorf("update: %s: %w", path, err)
		}
		// A note: sizes of name and content, a type, the name, the content.
		if len(raw) <= 16 || !bytes.Equal(raw[12:16], []byte(n.owner)) {
			continue
		}
		if size := int(f.ByteOrder.Uint32(raw[4:8])); size > 0 && size <= len(raw)-16 {
			return n.read(raw[16 : 16+size]), nil
		}
	}
	return "", fmt.Errorf("update: %s is no Go program, or has no build ID; build it with make build", path)
}

// inspect describes a release file, and checks that it runs on this machine. It is called only for files with a good
// signature, or that run already.
func inspect(ctx context.Context, path string) (Version, error) {
	f, err := elf.Open(path)
	if err != nil {
		return Version{}, fmt.Errorf("update: it is no program: %w; get the file of a release", err)
	}
	defer f.Close()
	if want := machines[runtime.GOARCH]; f.Machine != want {
		return Version{}, fmt.Errorf("update: it is for another machine (%s), this one is %s; get the file for %s", f.Machine, want, runtime.GOARCH)
	}
	v := Version{}
	if v.BuildID, err = buildID(f, path); err != nil {
		return v, err
	}
	parts, err := versionsOf(ctx, path)
	if err != nil {
		return v, err
	}
	for _, p := range parts {
		if p.Name == "rivulet" {
			v.Name = p.Version
		}
	}
	v.Kubernetes = version.KubernetesOf(parts)
	if v.Name == "" {
		return v, errors.New("update: it does not say its version, so it is not rivulet; get the file of a release")
	}
	if _, err := version.Minor(v.Kubernetes); err != nil {
		return v, fmt.Errorf("update: it does not say its version of Kubernetes (%w); get the file of a release", err)
	}
	return v, nil
}

// versionTimeout is how long a binary may take to print its version, on a slow card.
const versionTimeout = time.Minute

// versionsOf runs `rivulet version` of another binary.
func versionsOf(ctx context.Context, path string) ([]version.Part, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "version", "-o", "json")
	cmd.Args[0] = "rivulet"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Dir = "/"
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &errOut, time.Second
	if err := cmd.Run(); err != nil {
		if errors.Is(err, os.ErrPermission) {
			return nil, fmt.Errorf("update: it cannot be started: %w; is the state folder on a file system that is mounted noexec? mount it without", err)
		}
		return nil, fmt.Errorf("update: it does not run here: %w %s; get the file of another release", err, bytes.TrimSpace(errOut.Bytes()))
	}
	var parts []version.Part
	if err := json.Unmarshal(out.Bytes(), &parts); err != nil {
		return nil, fmt.Errorf("update: it does not say what it is (%w), so it is not rivulet; get the file of a release", err)
	}
	return parts, nil
}
