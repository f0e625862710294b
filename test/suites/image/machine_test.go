package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"rivulet/appliance/lifecycle"
	"rivulet/image/device/layout"
	"rivulet/test/harness/await"
)

// patience is how long an emulated machine may take for one thing on a busy host.
const patience = 15 * time.Minute

// image is the path of the packed image, or the test is skipped.
func image(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Skipf("needs %s and QEMU: make test-image", variable)
	}
	return path
}

// unpacked are images as they were unpacked once, by their packed path; gone with the run.
var unpacked = map[string]string{}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, path := range unpacked {
		os.Remove(path)
	}
	os.Exit(code)
}

// shell is what the kernel of a machine under test is told besides. A look at the clock is
// a call of the emulator unless the time stamp counter, which the emulator keeps in step, may be believed.
const shell = "systemd.show_status=no systemd.debug_shell=ttyS0 tsc=reliable mitigations=off"

// disk makes a disk of a size out of the image, whose kernel gives us a shell. It has
// holes where nothing was written.
func disk(t *testing.T, packed, size string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	if unpacked[packed] == "" {
		f, err := os.CreateTemp("", "rivulet-*.img")
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		unpacked[packed] = f.Name()
		tool(t, "zstd", "-q", "-d", "-f", "--sparse", packed, "-o", f.Name())
	}
	tool(t, "cp", "--sparse=always", "--reflink=auto", unpacked[packed], path)
	for _, file := range []string{"a/entry.cfg", "loader/entries/" + layout.EntryName(layout.A, false)} {
		setFAT(t, path, file, withShell(t, fat(t, path, file)))
	}
	tool(t, "truncate", "-s", size, path)
	return path
}

func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "MTOOLS_SKIP_CHECK=1")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, errs.String())
	}
	return string(out)
}

// fat and setFAT read and write a file of the boot partition of a disk that is off.
func fat(t *testing.T, disk, file string) string {
	t.Helper()
	return tool(t, "mtype", "-i", fmt.Sprintf("%s@@%d", disk, int64(layout.Start)), "::/"+file)
}

func setFAT(t *testing.T, disk, file, text string) {
	t.Helper()
	from := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tool(t, "mcopy", "-o", "-i", fmt.Sprintf("%s@@%d", disk, int64(layout.Start)), from, "::/"+file)
}

// machine is one that is switched on.
type machine struct {
	t     *testing.T
	cmd   *exec.Cmd
	line  net.Conn
	mu    sync.Mutex
	said  []byte
	asked int
}

// on switches a machine on. more are arguments for QEMU.
func on(t *testing.T, disk string, more ...string) *machine {
	t.Helper()
	return start(t, disk, (*exec.Cmd).Start, more...)
}

// start is on, for a machine that begins elsewhere, such as in a network namespace.
func start(t *testing.T, disk string, begin func(*exec.Cmd) error, more ...string) *machine {
	t.Helper()
	return switchOn(t, begin, append([]string{"-drive", "file=" + disk + ",format=raw,if=virtio,cache=writethrough"}, more...)...)
}

// switchOn starts a PC with a disk among the arguments.
func switchOn(t *testing.T, begin func(*exec.Cmd) error, more ...string) *machine {
	t.Helper()
	return switchOnA(t, "qemu-system-x86_64", begin, append([]string{"-M", "q35", "-cpu", "max", "-smp", "2", "-m", "3072",
		"-device", "virtio-rng-pci", "-device", "i6300esb"}, more...)...)
}

// switchOnA starts a machine of one of QEMU's programs, whose first serial line is ours.
func switchOnA(t *testing.T, program string, begin func(*exec.Cmd) error, more ...string) *machine {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "serial")
	m := &machine{t: t}
	m.cmd = exec.Command(program, append([]string{"-accel", "tcg,thread=multi", "-display", "none", "-nodefaults",
		"-chardev", "socket,id=serial,server=on,wait=on,path=" + socket, "-serial", "chardev:serial", "-monitor", "none"}, more...)...)
	var errs bytes.Buffer
	m.cmd.Stderr = &errs
	if err := begin(m.cmd); err != nil {
		t.Fatalf("%v; make image-deps", err)
	}
	t.Cleanup(func() {
		m.cut()
		m.mu.Lock()
		defer m.mu.Unlock()
		if t.Failed() {
			t.Logf("QEMU: %s\nwhat the machine said at last:\n%s", errs.String(), m.said[max(0, len(m.said)-6000):])
		}
	})
	await.NoError(t, t.Context(), patience, "the serial line of QEMU", func() (err error) {
		m.line, err = net.Dial("unix", socket)
		return err
	})
	log := io.Discard
	if dir := os.Getenv("RIVULET_SERIAL"); dir != "" {
		f, err := os.CreateTemp(dir, strings.ReplaceAll(t.Name(), "/", "-")+"-*.log")
		if err != nil {
			t.Fatal(err)
		}
		log = f
		t.Cleanup(func() { f.Close() })
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := m.line.Read(buf)
			log.Write(buf[:n])
			m.mu.Lock()
			m.said = append(m.said, buf[:n]...)
			m.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return m
}

// cut takes the power away.
func (m *machine) cut() {
	if m.cmd.ProcessState == nil {
		m.cmd.Process.Kill()
		m.cmd.Wait()
		m.line.Close()
	}
}

// says waits until the serial line has shown it.
func (m *machine) says(pattern string) []string {
	m.t.Helper()
	look := regexp.MustCompile(pattern)
	var found []string
	await.NoError(m.t, m.t.Context(), patience, "the machine", func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if found = look.FindStringSubmatch(string(m.said)); found == nil {
			return fmt.Errorf("has not said %q, but at last: %s", pattern, m.said[max(0, len(m.said)-2000):])
		}
		return nil
	})
	return found
}

// ask runs a command in the machine's shell, and returns what it wrote. The mark
// that ends it is put together by the shell: its own echo does not end it.
func (m *machine) ask(command string) string {
	m.t.Helper()
	m.asked++
	fmt.Fprintf(m.line, "\necho 'begin'-%d; { %s; } 2>&1; echo 'end'-%d\n", m.asked, command, m.asked)
	return strings.TrimSpace(strings.ReplaceAll(m.says(fmt.Sprintf(`(?s)begin-%d\r?\n(.*?)end-%d\r?\n`, m.asked, m.asked))[1], "\r", ""))
}

// up waits for the shell and for what systemd started.
func (m *machine) up() {
	m.t.Helper()
	m.says(`root@\S+#`)
	m.ask("dmesg -n 1") // so that nothing comes between a question and its answer
	m.until("systemctl is-active rivulet.service", "^active$")
}

// userSpace is when the kernel handed over to user space, in seconds after the boot.
func (m *machine) userSpace() float64 {
	m.t.Helper()
	micro, err := strconv.ParseFloat(m.ask("systemctl show -P UserspaceTimestampMonotonic | cat"), 64)
	if err != nil {
		m.t.Error(err)
	}
	return micro / 1e6
}

// tellWhen logs when a stage of the supervisor was ready, after the kernel handed over to user space.
func (m *machine) tellWhen(stage string) {
	m.t.Helper()
	user := m.userSpace()
	for _, s := range m.status().Stages {
		if s.Name == stage && s.State == lifecycle.Ready {
			m.t.Logf("%s is ready %.1f s after user space began", stage, s.SinceBoot.Seconds()-user)
			return
		}
	}
	m.t.Errorf("%s is not ready", stage)
}

// until asks again and again.
func (m *machine) until(command, want string) string {
	m.t.Helper()
	answer, look := "", regexp.MustCompile("(?m)"+want)
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	if err := await.Until(ctx, func() error {
		if answer = m.ask(command); !look.MatchString(answer) {
			return fmt.Errorf("%s", answer)
		}
		return nil
	}); err != nil {
		m.t.Errorf("%s: %v", command, err)
		m.t.Fatalf("what it can tell: %s", m.ask(tells))
	}
	return answer
}

// tells are what a machine that is not as it should be is asked.
const tells = "uptime; free -m; ps -eo pid,etime,time,rss,args --sort=-time | cut -c1-120 | head -n 12; " +
	"rivulet status; journalctl -u rivulet -n 40 --no-pager | cut -c1-400; " +
	"for f in $(find /var/lib/rivulet -name engine.log -o -name containerd.log); do echo; ls -l $f; tail -n 40 $f | cut -c1-400; done"
