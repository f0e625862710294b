package engine

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
	"rivulet/offload/policy"
)

// manifest is applied by k3s at every start.
//
//go:embed manifests/rivulet-engine.yaml
var manifest string

// Without CAP_SYS_RESOURCE runc may not lower oom_score_adj, and no pod starts.
const containerdNoSysResource = `version = 3
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
`

// prepare writes all files that k3s reads. It may be called again at any time.
func (e *Engine) prepare() error {
	if err := os.MkdirAll(paths.Config, 0o755); err != nil {
		return fmt.Errorf("engine: %w; run as root", err)
	}
	if err := keepNodePassword(filepath.Join(e.cfg.StateDir, "k3s-node")); err != nil {
		return err
	}
	return e.prepareFiles()
}

// prepareFiles writes the files in Rivulet's folders.
func (e *Engine) prepareFiles() error {
	etc := filepath.Join(e.DataDir(), "agent", "etc", "containerd")
	images := filepath.Join(e.DataDir(), "agent", "images")
	manifests := filepath.Join(e.DataDir(), "server", "manifests")
	for _, dir := range []string{etc, images, manifests, e.binDir()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("engine: %w; run as root and look at the disk", err)
		}
	}
	err := fixed.Write(e.cfg.StateDir, fixed.Ranges{Pods: e.cfg.PodCIDR, Services: e.cfg.ServiceCIDR, Nodes: netip.PrefixFrom(e.cfg.NodeIP, 16).Masked()})
	if err != nil {
		return err
	}
	if e.cfg.Join == nil {
		err = errors.Join(writeFile(filepath.Join(manifests, "rivulet-engine.yaml"), manifest),
			writeFile(e.schedulerConfigFile(), policy.SchedulerConfig(filepath.Join(e.DataDir(), "server", "cred", "scheduler.kubeconfig"))))
	}
	if e.cfg.Join != nil {
		err = writeFile(e.tokenFile(), e.cfg.Join.Token)
	}
	if err := errors.Join(err, e.writeRegistries()); err != nil {
		return err
	}
	if err := writeFile(e.kubeletConfigFile(), e.kubeletConfig()); err != nil {
		return err
	}
	if err := e.writeResolv(); err != nil {
		return err
	}
	template := `{{ template "base" . }}` + "\n"
	if !e.cfg.Facts.SysResource {
		extra := filepath.Join(e.cfg.StateDir, "k3s-containerd.toml")
		if err := writeFile(extra, containerdNoSysResource); err != nil {
			return err
		}
		template = fmt.Sprintf("imports = [%q]\n", extra) + template
	}
	if err := writeFile(filepath.Join(etc, "config-v3.toml.tmpl"), template); err != nil {
		return err
	}
	if err := e.linkTools(); err != nil {
		return err
	}
	for _, image := range e.cfg.Images {
		if err := copyIfChanged(image, filepath.Join(images, "rivulet-"+filepath.Base(image))); err != nil {
			return err
		}
	}
	return nil
}

// linkTools makes containerd, kubectl, ctr and crictl available in PATH for k3s.
func (e *Engine) linkTools() error {
	for _, name := range []string{"containerd", "kubectl", "ctr", "crictl"} {
		link := filepath.Join(e.binDir(), name)
		if at, err := os.Readlink(link); err == nil && at == e.cfg.Executable {
			continue
		}
		os.Remove(link)
		if err := os.Symlink(e.cfg.Executable, link); err != nil {
			return fmt.Errorf("engine: %w", err)
		}
	}
	return nil
}

// keepNodePassword makes k3s store the node's password with the rest of the state. k3s has a fixed path for it in /etc;
// the cluster would refuse state without its password, and a password without its state. An existing folder is not
// changed.
func keepNodePassword(dir string) error {
	const fixed = "/etc/rancher/node"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	fi, err := os.Lstat(fixed)
	if err == nil && fi.Mode()&fs.ModeSymlink == 0 {
		return nil
	}
	if at, err := os.Readlink(fixed); err == nil && at == dir {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(fixed), 0o755); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	os.Remove(fixed)
	if err := os.Symlink(dir, fixed); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	return nil
}

func writeFile(path, content string) error {
	if err := durable.Write(path, []byte(content), 0o600); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	return nil
}

// copyIfChanged copies a file unless size and time are equal already.
func copyIfChanged(from, to string) error {
	src, err := os.Stat(from)
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	if dst, err := os.Stat(to); err == nil && dst.Size() == src.Size() && dst.ModTime().Equal(src.ModTime()) {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("engine: %w", err)
	}
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	defer in.Close()
	// k3s would import a partial file in its folder.
	tmp := filepath.Join(filepath.Dir(filepath.Dir(to)), ".image.part")
	out, err := os.Create(tmp)
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Chtimes(tmp, src.ModTime(), src.ModTime())
	}
	if err == nil {
		err = os.Rename(tmp, to)
	}
	if err != nil {
		return fmt.Errorf("engine: %w; look at the disk (space, read-only mount)", err)
	}
	return nil
}

func (e *Engine) schedulerConfigFile() string {
	return filepath.Join(e.cfg.StateDir, "k3s-scheduler.yaml")
}

func (e *Engine) schedulerArgs() []string {
	return prefixed("--kube-scheduler-arg=", "config="+e.schedulerConfigFile())
}
