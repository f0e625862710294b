// Package lab makes several Rivulet devices on one machine, for demos and tests; it is never shipped.
//
// Every device runs the real `rivulet run` in network, mount, PID, UTS, IPC and cgroup namespaces of its own, below a
// small init (this program executed again), on a disk that is a plain folder. The devices share one LAN: a bridge in
// a network namespace that belongs to the lab alone. Nothing of a device is visible in the host's network or mounts.
//
//	host ──  DIR/lab.json   DIR/a/root  DIR/b/root …
//	          │
//	LAN netns │   br0 10.77.0.0/24 ── ports a, b, c      (held by the process rivulet-lab-lan)
//	          │                      │
//	device a  │   eth0 10.77.0.11 ───┘   PID 1 = rivulet-lab-init ── rivulet run ── engine, tunnel …
//
// It reads the host's /usr and /etc (never writes them), and alone writes the folder given as Options.Dir, the
// cgroups named rivulet-lab-<id> and /run/rivulet-lab.read. Whatever it makes is written to DIR/lab.json before it is made, so that Down can
// clean up after a run of Up that was cut short anywhere. Processes are recorded with their start time and are killed
// through a pidfd after a check of it: a process that merely inherited the PID is never touched.
//
// Devices outlive the process that started them; Open finds them again. Those in a folder of OwnDir do not: a warden takes
// them down when the process that made the folder has ended. A program that imports this package serves
// as the devices' init by being executed with another argv[0] (see reexec.go): it need not do anything for that.
//
// Files: lab.go (Up, Down), device.go (what is done to a device), lan.go, cgroup.go, proc.go, state.go and owner.go work on the host; reexec.go,
// root.go, etc.go, dev.go and pid1.go inside a device while it boots and runs; enter.go is the way in for a command.
//
// A device's processes share the host's kernel: clock, kernel log and page cache are common to all, and a power cut
// (Kill("power")) loses processes and tmpfs, not writes that were never synced.
package lab
