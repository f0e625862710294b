package card

import (
	"slices"
	"strings"

	"rivulet/image/device/layout"
)

// config is the firmware's result of reading config.txt and the files that it includes.
type config struct {
	prefix, kernel, initrd string
	set                    map[string]string
	overlays               []string
}

// lineLimit is how many bytes of a line the firmware reads.
const lineLimit = 98

// config reads config.txt as the firmware does. Only known settings are allowed, because the firmware does not report
// those that it does not support.
func (p *problems) config(f Files) config {
	c := config{set: map[string]string{}}
	var read func(name string)
	read = func(name string) {
		raw, ok := f[name]
		if !ok {
			p.add("%s is not there", name)
			return
		}
		for line := range strings.Lines(string(raw)) {
			line = strings.TrimRight(line, "\n")
			if len(line) > lineLimit {
				p.add("%s: the firmware reads %d characters of %q", name, lineLimit, line)
			}
			if line == "" || line[0] == '#' {
				continue
			}
			if file, ok := strings.CutPrefix(line, "include "); ok {
				read(file)
				continue
			}
			if rest, ok := strings.CutPrefix(line, "initramfs "); ok {
				if w := strings.Fields(rest); len(w) == 2 && w[1] == "followkernel" {
					c.initrd = w[0]
					continue
				}
			}
			key, value, ok := strings.Cut(line, "=")
			switch {
			case ok && key == "dtoverlay":
				overlay, _, _ := strings.Cut(value, ",")
				c.overlays = append(c.overlays, overlay)
			case ok && slices.Contains([]string{"arm_64bit", "enable_uart", "upstream_kernel", "disable_overscan", "kernel", "os_prefix"}, key):
				c.set[key] = value
			default: // device_tree and gpu_mem among them: they require other files
				p.add("%s: %q is not known here", name, line)
			}
		}
	}
	read("config.txt")
	c.prefix, c.kernel = c.set["os_prefix"], c.set["kernel"]
	for key, why := range map[string]string{
		"arm_64bit":       "the firmware of the 3 would start it as a kernel for 32 bits",
		"upstream_kernel": "the firmware would ask for trees by names that Debian's kernel does not have",
		"enable_uart":     "the serial console would have no clock",
	} {
		if c.set[key] != "1" {
			p.add("config.txt: %s is %q: %s", key, c.set[key], why)
		}
	}
	for what, name := range map[string]string{"kernel": c.kernel, "initramfs": c.initrd} {
		if name == "" {
			p.add("config.txt names no %s", what)
		}
	}
	for _, o := range c.overlays {
		if name := c.prefix + Overlays + "/" + o + ".dtbo"; len(f[name]) == 0 {
			p.add("config.txt: %s is not there", name)
		}
	}
	return c
}

// command checks the kernel's command line.
func (p *problems) command(f Files, c config, slot layout.Slot) {
	name := c.prefix + layout.CommandFile
	text, ended := strings.CutSuffix(string(f[name]), "\n")
	if !ended || strings.ContainsAny(text, "\n\r@") || len(text) > layout.CommandLimit {
		p.add("%s: one line of %d characters at most, with the slot filled in: %.80q", name, layout.CommandLimit, text)
	}
	words := strings.Fields(text)
	for _, want := range []string{"rivulet.slot=" + slot.String(), "cgroup_enable=memory", "panic=10"} {
		if !slices.Contains(words, want) {
			p.add("%s lacks %s", name, want)
		}
	}
	for _, w := range words {
		if strings.HasPrefix(w, "root=") || strings.HasPrefix(w, "init=") || w == "cgroup_disable=memory" {
			p.add("%s: %s", name, w)
		}
	}
	if c.prefix != slot.String()+"/" {
		p.add("%s: the firmware takes %q, the slot is %s", layout.ChoiceFile, c.prefix, slot)
	}
}
