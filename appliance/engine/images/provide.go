package images

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"rivulet/offload/policy"
)

// keepsFree is the part of the disk, per cent, that a pull leaves free: the kubelet begins to remove images at 15.
const keepsFree = 20

// Provide brings an image to this device, if it is not here, from its registry, keeps it, and lets virtual clusters of
// these groups use it, and no other tenant. It may be called again at any time.
func (c *Containerd) Provide(ctx context.Context, name string, groups []string) error {
	full, err := Full(name)
	if err != nil {
		return err
	}
	labels, err := c.labels(ctx)
	if err != nil {
		return err
	}
	have, there := labels[full]
	if !there {
		if err := c.pull(ctx, full); err != nil {
			return err
		}
		if labels, err = c.labels(ctx); err != nil {
			return err
		}
		if have, there = labels[full]; !there {
			return fmt.Errorf("%s was pulled, and containerd does not list it; it is tried again", full)
		}
	}
	add := provide(have, groups)
	if len(add) == 0 {
		return nil
	}
	_, err = c.ctr(ctx, nil, append([]string{"images", "label", full}, add...)...)
	return err
}

// provide returns the changes of an image's labels; a label without a value is removed.
func provide(have map[string]string, groups []string) (add []string) {
	value, before := "set", how(have)
	if strings.Contains(before, "shared") { // by an earlier version, with all tenants
		add = append(add, policy.ShareLabel+"=")
	}
	if pinned := have["io.cri-containerd.pinned"] == "pinned"; strings.Contains(before, "kept") || !pinned {
		if value = "kept"; !pinned {
			add = append(add, keptLabel)
		}
	}
	for _, g := range slices.Compact(slices.Sorted(slices.Values(groups))) {
		value += "+" + g
	}
	if have[policy.ProvidedLabel] != value {
		add = append(add, policy.ProvidedLabel+"="+value)
	}
	return add
}

// how is kept if Provide has pinned the image, set if it was pinned, empty if Provide has done nothing.
func how(labels map[string]string) string {
	value, _, _ := strings.Cut(labels[policy.ProvidedLabel], "+")
	return value
}

// Release ends what Provide did for all images but these: they are kept only if an operator wants it.
func (c *Containerd) Release(ctx context.Context, but []string) error {
	labels, err := c.labels(ctx)
	if err != nil {
		return err
	}
	var kept []string
	for _, name := range but {
		if full, err := Full(name); err == nil {
			kept = append(kept, full)
		}
	}
	for name, have := range labels {
		if how(have) == "" || slices.Contains(kept, name) {
			continue
		}
		args := []string{"images", "label", name, policy.ProvidedLabel + "="} // empty: removes the label
		if how(have) == "kept" {
			args = append(args, "io.cri-containerd.pinned=")
		}
		if _, err := c.ctr(ctx, nil, args...); err != nil {
			return err
		}
	}
	return nil
}

// labels are those of all images, by name.
func (c *Containerd) labels(ctx context.Context) (map[string]map[string]string, error) {
	list, err := c.ctr(ctx, nil, "images", "ls")
	if err != nil {
		return nil, err
	}
	out := map[string]map[string]string{}
	for line := range strings.Lines(string(list)) {
		f := strings.Fields(line)
		if len(f) >= 3 && f[0] != "REF" {
			out[f[0]] = labelsOf(f)
		}
	}
	return out, nil
}

// pull fetches an image as the kubelet does, with this device's registries and their credentials.
func (c *Containerd) pull(ctx context.Context, name string) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(c.State, &disk); err == nil && disk.Bavail*100 < disk.Blocks*keepsFree {
		return fmt.Errorf("less than %d %% of the disk are free; remove images: rivulet image rm --unused", keepsFree)
	}
	if _, err := c.tool(ctx, nil, "crictl", "--image-endpoint", "unix://"+Socket, "--timeout", "30m", "pull", name); err != nil {
		return fmt.Errorf("it cannot be pulled (%s); bring it from a file: rivulet image push FILE", strings.TrimSuffix(err.Error(), "; see: rivulet status"))
	}
	return nil
}
