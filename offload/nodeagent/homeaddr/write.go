package homeaddr

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"rivulet/offload/policy"
)

const ClusterDomain = "cluster.local"

// Write writes a pod's address at home into its volume policy.HomeVolume: its variables (policy.HomeAddressFile, for
// the kubelet) and its /etc/hosts (policy.HomeHostsFile). It is called before the pod's first process, and again when
// the pod gets another network. kubelet is the kubelet's folder.
//
// The pod may have written into the volume: no link in it is followed.
func Write(kubelet string, pod *corev1.Pod, own netip.Addr) error {
	if err := write(kubelet, pod, own); err != nil {
		return fmt.Errorf("homeaddr: what pod %s in %s is told of its address: %w; delete the pod at home if this lasts", pod.Name, pod.Namespace, err)
	}
	return nil
}

func write(kubelet string, pod *corev1.Pod, own netip.Addr) error {
	volume := func(v corev1.Volume) bool { return v.Name == policy.HomeVolume && v.EmptyDir != nil }
	if pod.UID == "" || !filepath.IsLocal(string(pod.UID)) || !slices.ContainsFunc(pod.Spec.Volumes, volume) {
		return errors.New("it has no volume " + policy.HomeVolume)
	}
	root, err := os.OpenRoot(filepath.Join(kubelet, "pods", string(pod.UID), "volumes", "kubernetes.io~empty-dir", policy.HomeVolume))
	if err != nil {
		return err
	}
	defer root.Close()
	variables := fmt.Sprintf("%s='%s'\n", policy.HomeAddressKey, own)
	for name, text := range map[string]string{policy.HomeAddressFile: variables, policy.HomeHostsFile: hosts(pod, own)} {
		if err := put(root, name, text); err != nil {
			return err
		}
	}
	return nil
}

// put replaces a file, whatever the pod has put in its place.
func put(root *os.Root, name, text string) error {
	fresh := name + ".new"
	if err := root.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return root.Rename(fresh, name)
}

// hosts is the /etc/hosts that a kubelet at home would write (k8s.io/kubernetes/pkg/kubelet, managedHostsFileContent).
func hosts(pod *corev1.Pod, own netip.Addr) string {
	name := pod.Spec.Hostname
	names, full := name, ""
	if home := pod.Annotations[policy.HomeNamespaceAnnotation]; pod.Spec.Subdomain != "" && home != "" {
		full = strings.Join([]string{name, pod.Spec.Subdomain, home, "svc", ClusterDomain}, ".")
		names = full + "\t" + name
	}
	// Home writes the full name there if the pod has it as its host name.
	if over := pod.Spec.HostnameOverride; over != nil && *over != full {
		names = *over
	}
	var b strings.Builder
	b.WriteString("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
	fmt.Fprintf(&b, "%s\t%s\n", own, names)
	if len(pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
	}
	for _, a := range pod.Spec.HostAliases {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.String()
}
