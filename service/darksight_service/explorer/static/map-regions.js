export function openRegions() { return { load: async () => {} }; }
