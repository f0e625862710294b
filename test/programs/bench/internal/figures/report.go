package figures

import (
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Row is one figure.
type Row struct {
	What   string
	Figure string  // with unit and spread
	Ratio  Samples // nil where there is nothing to compare with
	// Promise is what DESIGN §7 says, empty if it says nothing; Value is compared
	// with Limit.
	Promise      string
	Value, Limit float64
	AtLeast      bool // Value must be ≥ Limit, else ≤
}

// Section is one measurement.
type Section struct {
	Title string
	How   string // what was compared with what, in a sentence or two
	Rows  []Row
	Notes []string
	Took  time.Duration
	Err   error
}

// verdict says whether the promise is met, or by how much it is not.
func (r Row) verdict() string {
	switch {
	case r.Promise == "":
		return ""
	case math.IsNaN(r.Value):
		return "not measured"
	case r.AtLeast && r.Value >= r.Limit, !r.AtLeast && r.Value <= r.Limit:
		return "met"
	case r.AtLeast:
		return fmt.Sprintf("**short by %.0f %%**", 100*(1-r.Value/r.Limit))
	}
	return fmt.Sprintf("**over by %.0f %%**", 100*(r.Value/r.Limit-1))
}

// Write writes the report as Markdown.
func Write(w io.Writer, date time.Time, machine, version string, sections []Section) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Results of `make bench`\n\nGenerated; do not edit. How it is measured: `docs/design/bench.md`.\n\n%s · rivulet %s · %s\n\n", date.UTC().Format("2006-01-02 15:04 UTC"), version, machine)
	b.WriteString("Medians of interleaved rounds, the middle half of them in brackets. Ratios are taken round by round: what one round holds shared the machine's mood.\n")
	for _, s := range sections {
		fmt.Fprintf(&b, "\n## %s\n\n%s Took %s.\n", s.Title, s.How, s.Took.Round(time.Second))
		if len(s.Rows) > 0 {
			b.WriteString("\n| what | figure | ratio | promise | |\n|---|---|---|---|---|\n")
		}
		for _, r := range s.Rows {
			ratio := ""
			if r.Ratio != nil {
				ratio = r.Ratio.Show("%.2f", "")
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.What, r.Figure, ratio, r.Promise, r.verdict())
		}
		for _, n := range s.Notes {
			fmt.Fprintf(&b, "\n- %s", n)
		}
		if len(s.Notes) > 0 {
			b.WriteString("\n")
		}
		if s.Err != nil {
			fmt.Fprintf(&b, "\n**Cut short:** %v\n", s.Err)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Machine describes the hardware and the kernel, without names or paths.
func Machine() string {
	model := "unknown CPU"
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if name, value, ok := strings.Cut(line, ":"); ok && (strings.HasPrefix(name, "model name") || strings.HasPrefix(name, "Model")) {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	var si unix.Sysinfo_t
	_ = unix.Sysinfo(&si)
	var uts unix.Utsname
	_ = unix.Uname(&uts)
	cgroup := "v1"
	var fs unix.Statfs_t
	if unix.Statfs("/sys/fs/cgroup", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
		cgroup = "v2"
	}
	return fmt.Sprintf("%s, %d cores, %.0f GiB, Linux %s %s, cgroup %s, %s", model, runtime.NumCPU(),
		float64(uint64(si.Totalram)*uint64(si.Unit))/(1<<30), kernel(unix.ByteSliceToString(uts.Release[:])), runtime.GOARCH, cgroup, runtime.Version())
}

// kernel is the version without what the distributor appended.
func kernel(release string) string {
	version, _, _ := strings.Cut(release, "-")
	return version
}
