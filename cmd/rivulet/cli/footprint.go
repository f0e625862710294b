package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"rivulet/appliance/machine/usage"
)

// shortest is the shortest time of measurement for writes per day: a start writes more than the day after it.
const shortest = 30 * time.Minute

// printFootprint prints Rivulet's use of the machine, in two lines.
func printFootprint(out io.Writer, r usage.Report, ram uint64) {
	var parts []string
	for _, p := range r.Processes {
		parts = append(parts, fmt.Sprintf("%s %d", p.Name, p.PSS/1e6))
	}
	fmt.Fprintf(out, "MEMORY %d MB of %d: %s\n", r.PSS()/1e6, ram/1e6, strings.Join(parts, ", "))
	fmt.Fprintf(out, "WRITES %s by Rivulet", writes(r.Written))
	if r.DiskName != "" {
		fmt.Fprintf(out, "; %s by everything on %s", writes(r.Disk), r.DiskName)
	}
	fmt.Fprintln(out)
}

func writes(w usage.Writes) string {
	text := fmt.Sprintf("%.0f MB in %s", float64(w.Bytes)/1e6, w.Over.Round(time.Minute))
	if w.Over < time.Minute {
		text = fmt.Sprintf("%.0f MB in %s", float64(w.Bytes)/1e6, w.Over.Round(time.Second))
	}
	if w.Over >= shortest {
		text += fmt.Sprintf(" (%.0f a day)", w.PerDay()/1e6)
	}
	return text
}
