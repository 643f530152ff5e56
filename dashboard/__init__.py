"""The Streamlit app that explores baseline against optimized. It computes nothing: it calls ``profiler`` and draws."""
